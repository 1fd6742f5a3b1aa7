//! The server as a library: several in one process, without the program.

mod images;
mod independence;
mod kept;
mod listening;
mod nbd;
mod requests;
mod transport;
mod versions;

use std::sync::{Arc, Mutex};

use pagefold_server::{Config, Level, MemoryLimit, Observer, Server};

/// The lines that an observer has received.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl Lines {
    fn observer(&self) -> Observer {
        let lines = self.clone();
        Observer::new(move |level, line| lines.0.lock().expect("no panic").push((level, line.to_owned())))
    }

    /// Returns how many lines of this level contain a text.
    fn count(&self, level: Level, text: &str) -> usize {
        let lines = self.0.lock().expect("no panic");
        lines.iter().filter(|(found, line)| *found == level && line.contains(text)).count()
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.limit = MemoryLimit::Bytes(256 << 20);
    config
}

fn server() -> Server {
    Server::new(config()).expect("a server")
}
