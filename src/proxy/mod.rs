//! The data port: takes requests in, lets them through admission, passes the engine's answers on.
//!
//! `pipeline` shows the path of a request; everything else is one step of it. Decides nothing about
//! admission (that is `admit`) and makes every refusal in one place (`respond`).
//! Called by: `gateway`.

mod accept;
mod answer;
mod body;
pub mod events;
mod forward;
mod headers;
mod hold;
mod pipeline;
mod pool;
mod record;
mod refused;
mod respond;
mod rules;
mod settings;
mod waiting;

pub use accept::serve;
pub use body::Bodies;
pub use forward::Forward;
pub use pipeline::{Parts, Pipeline};
pub use settings::{Settings, UnknownPaths};
