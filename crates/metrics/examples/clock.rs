//! Exports the seconds since its start.

use std::{net::TcpListener, sync::Arc, time::Instant};

use pagefold_metrics::{Exporter, Kind, Listener, Source, Text};

/// Counts seconds.
struct Clock(Instant);

impl Source for Clock {
    fn write(&self, text: &mut Text) {
        let uptime = self.0.elapsed().as_secs_f64();
        text.family("clock_uptime_seconds", Kind::Gauge, "Seconds since the start.").value(&[], uptime);
    }
}

fn main() -> std::io::Result<()> {
    let socket = TcpListener::bind("127.0.0.1:0")?;
    // curl http://127.0.0.1:PORT/metrics
    let exporter = Exporter::start(vec![Listener::Tcp(socket)], Arc::new(Clock(Instant::now())))?;
    // Until the exporter is dropped, its thread answers.
    drop(exporter);
    Ok(())
}
