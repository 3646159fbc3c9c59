//! What the data port may be told.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What happens to paths that are in no table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownPaths {
    /// They go to the engine.
    #[default]
    Forward,
    /// They are answered 403.
    Refuse,
}

/// The data port's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Address of the data port.
    pub listen: SocketAddr,
    /// Client connections held at once; further ones wait in the kernel's backlog. At least 1.
    pub max_connections: usize,
    /// Largest request body, bytes; a larger one is answered 413.
    pub max_body_bytes: u64,
    /// Bytes of request bodies held in memory at once, over all requests; beyond it 429.
    pub held_body_bytes: u64,
    /// Seconds a client may take for its request head.
    pub head_timeout_seconds: f64,
    /// Seconds a client may pause inside its request body.
    pub body_timeout_seconds: f64,
    /// Seconds to go on reading a body that was refused, so that a client still uploading gets its answer.
    pub linger_seconds: f64,
    /// Seconds for a TCP connect to the engine.
    pub connect_timeout_seconds: f64,
    /// Seconds until the engine's answer must begin; 0 is no limit (a plain answer comes when all is generated).
    pub first_byte_timeout_seconds: f64,
    /// Seconds a stream may be silent after its first event; 0 is no limit.
    pub stall_timeout_seconds: f64,
    /// Seconds in the queue after which a stream's client hears a comment, and again after as long: its answer has
    /// begun then, with status 200, and a refusal comes inside it. 0: a request waits in silence.
    pub queue_keep_alive_seconds: f64,
    /// Seconds an idle connection to the engine is kept; must stay under the engine's own (vLLM: 5).
    pub pool_idle_seconds: f64,
    /// Largest plain answer collected before its head is sent, bytes; larger ones are passed on as they come.
    pub collect_bytes: usize,
    /// Largest incomplete event held back, bytes.
    pub held_event_bytes: usize,
    /// Seconds that a client may leave what was sent to it unread; then its connection is cut and its place
    /// in the engine freed. At least 1.
    pub unread_timeout_seconds: f64,
    /// Seconds that requests in flight may take to end after SIGTERM.
    pub drain_seconds: f64,
    /// Paths in no table.
    pub unknown_paths: UnknownPaths,
    /// Paths that change the engine and are open all the same, such as `/v1/load_lora_adapter`.
    pub allow_paths: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            max_connections: 4096,
            max_body_bytes: 8 << 20,
            held_body_bytes: 256 << 20,
            head_timeout_seconds: 30.0,
            body_timeout_seconds: 30.0,
            linger_seconds: 10.0,
            connect_timeout_seconds: 2.0,
            first_byte_timeout_seconds: 0.0,
            stall_timeout_seconds: 600.0,
            queue_keep_alive_seconds: 0.0,
            pool_idle_seconds: 3.0,
            collect_bytes: 4 << 20,
            held_event_bytes: 1 << 20,
            unread_timeout_seconds: 120.0,
            drain_seconds: 30.0,
            unknown_paths: UnknownPaths::Forward,
            allow_paths: Vec::new(),
        }
    }
}

impl Settings {
    /// What is wrong with the settings: the key, the value, the range.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let seconds = [
            ("head_timeout_seconds", self.head_timeout_seconds, 0.001),
            ("body_timeout_seconds", self.body_timeout_seconds, 0.001),
            ("linger_seconds", self.linger_seconds, 0.0),
            ("connect_timeout_seconds", self.connect_timeout_seconds, 0.001),
            ("first_byte_timeout_seconds", self.first_byte_timeout_seconds, 0.0),
            ("stall_timeout_seconds", self.stall_timeout_seconds, 0.0),
            ("queue_keep_alive_seconds", self.queue_keep_alive_seconds, 0.0),
            ("pool_idle_seconds", self.pool_idle_seconds, 0.0),
            ("unread_timeout_seconds", self.unread_timeout_seconds, 1.0),
            ("drain_seconds", self.drain_seconds, 0.0),
        ];
        for (key, value, least) in seconds {
            if !(value.is_finite() && value >= least && value <= 86_400.0) {
                found.push(format!("proxy.{key} = {value}: must be between {least} and 86400 seconds"));
            }
        }
        let keep_alive = self.queue_keep_alive_seconds;
        if keep_alive > 0.0 && keep_alive < 0.05 {
            found.push(format!(
                "proxy.queue_keep_alive_seconds = {keep_alive}: must be 0, or at least 0.05 seconds"
            ));
        }
        if !(1..=1_000_000).contains(&self.max_connections) {
            let value = self.max_connections;
            found.push(format!("proxy.max_connections = {value}: must be between 1 and 1000000"));
        }
        if self.max_body_bytes == 0 || self.max_body_bytes > self.held_body_bytes {
            found.push(format!(
                "proxy.max_body_bytes = {}: must be between 1 and proxy.held_body_bytes ({})",
                self.max_body_bytes, self.held_body_bytes
            ));
        }
        for path in &self.allow_paths {
            if !path.starts_with('/') {
                found.push(format!("proxy.allow_paths: {path:?} must start with /"));
            }
        }
        found
    }
}
