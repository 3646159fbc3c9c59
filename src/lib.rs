//! kvgate: an admission gateway in front of an LLM inference engine.
//!
//! Every request passes through one process that counts its prompt tokens as the engine will,
//! refuses what the engine cannot hold, queues what it cannot hold *yet*, and keeps the shape of
//! every request in flight outside the process that may die of it.
//!
//! # The map
//!
//! | room | decides or does |
//! |---|---|
//! | [`request`] | what a request asks for: its id, its API, its prompt, its [`request::Shape`] |
//! | [`tokens`] | how many prompt tokens the engine will see |
//! | [`engine`] | what the engine is and how it fares: scrape, facts, life and death |
//! | [`admit`] | whether, and when, a request may go to the engine |
//! | [`ledger`] | which requests are in flight, in memory and on disk |
//! | [`crash`] | what was in flight when the engine died |
//! | [`proxy`] | the data port: one function shows the path of a request |
//! | [`operate`] | the admin port: probes, metrics, state |
//! | [`telemetry`] | the only place where events become metrics and log lines |
//! | [`sim`] | a simulated engine for the demo and the tests |
//! | [`config`] | one tree of the rooms' settings |
//! | [`gateway`] | builds every room once, wires them, runs, drains |
//! | [`cli`] | one file per command |
//!
//! # Who may import whom
//!
//! `tests/gateway/rooms.rs` holds this table as data and fails on any other import.
//!
//! | room | may import |
//! |---|---|
//! | telemetry, request | no room |
//! | engine, ledger | request, telemetry |
//! | tokens | request, telemetry (gateway hands it the way to ask the engine) |
//! | admit | request, engine, telemetry |
//! | crash | request, engine, ledger, telemetry |
//! | proxy | request, tokens, admit, ledger, engine, telemetry |
//! | operate | request, engine, admit, ledger, crash, tokens, telemetry |
//! | sim | request, tokens |
//! | config | each room's `Settings` |
//! | gateway | all of these |
//! | cli | config, gateway, tokens, admit, crash, ledger, sim, request, telemetry |

pub mod admit;
pub mod cli;
pub mod config;
pub mod crash;
pub mod engine;
pub mod gateway;
pub mod ledger;
pub mod operate;
pub mod proxy;
pub mod request;
pub mod sim;
pub mod telemetry;
pub mod tokens;
