//! The running server that a subcommand asks.

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use pagefold_serve::client::{Client, ClientError, Target};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Where a server is and which of its exports is meant.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("server").args(["unix", "tcp"]).required(true))]
pub(crate) struct Peer {
    /// The server's Unix socket
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,

    /// The server's TCP address; a port alone is on loopback
    #[arg(long, value_name = "[HOST:]PORT", value_parser = parse_tcp)]
    tcp: Option<String>,

    /// Only the export of this name
    #[arg(long)]
    name: Option<String>,
}

fn parse_tcp(text: &str) -> Result<String, String> {
    if text.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{text}"));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("write PORT or HOST:PORT".to_owned()),
    }
}

impl Peer {
    /// A new connection, of which everything has to be asked within ten seconds.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        let target = match (&self.unix, &self.tcp) {
            (Some(path), _) => Target::Unix(path.clone()),
            (None, Some(address)) => Target::Tcp(address.clone()),
            (None, None) => bail!("give --unix PATH or --tcp [HOST:]PORT"),
        };
        Client::connect(&target, TIMEOUT).map_err(|error| match error {
            ClientError::Connect { .. } => anyhow::Error::new(error).context("no server answers"),
            other => other.into(),
        })
    }

    /// The export that was named, or else all that the server has.
    pub(crate) fn exports(&self) -> anyhow::Result<Vec<String>> {
        match &self.name {
            Some(name) => Ok(vec![name.clone()]),
            None => Ok(self.connect()?.list()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_tcp;

    #[test]
    fn tcp_is_loopback_unless_told_otherwise() {
        for (text, address) in [("10809", "127.0.0.1:10809"), ("host:1", "host:1"), ("[::1]:10809", "[::1]:10809")] {
            assert_eq!(parse_tcp(text).as_deref(), Ok(address));
        }
        for text in ["", "host", ":10809", "host:", "host:70000", "host:nbd"] {
            assert!(parse_tcp(text).is_err(), "{text}");
        }
    }
}
