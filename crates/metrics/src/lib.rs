//! An exporter of metrics: OpenMetrics and the Prometheus text format over HTTP.
//!
//! ```
#![doc = include_str!("../examples/clock.rs")]
//! ```
//!
//! A [`Source`] writes its metrics into a [`Text`] whenever a client asks for them, and an
//! [`Exporter`] serves that on Unix and TCP sockets. It has one thread, serves few clients, and gives
//! each little time, so that a hostile one costs little.
//!
//! ```text
//! text      the two formats: names, units, labels, values
//! request   what a client asks for
//! exporter  sockets, clients, the thread
//! ```
#![forbid(unsafe_code)]

mod exporter;
mod request;
mod text;

pub use exporter::{Exporter, Listener, Source};
pub use text::{Family, Format, Kind, Text, Value};
