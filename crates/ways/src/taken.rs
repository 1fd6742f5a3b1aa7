//! Transports that continue those of another process.

use pagefold_server::{TakenTransport, Transport, TransportError};

use crate::{Directory, SocketDirectory};

/// Continues a transport of this crate, by its name.
///
/// # Errors
/// No transport has this name, for example because a later version handed it over, or its state is
/// invalid.
pub fn taken(taken: TakenTransport) -> Result<Box<dyn Transport>, TransportError> {
    match &*taken.name {
        Directory::NAME => Ok(Box::new(Directory::taken(taken)?)),
        SocketDirectory::NAME => Ok(Box::new(SocketDirectory::taken(taken)?)),
        other => Err(format!("this program cannot continue '{other}'").into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io, os::fd::OwnedFd};

    use serde_json::{Value, json, value::to_raw_value};

    use super::*;

    #[test]
    fn what_is_not_sound_is_refused() {
        let continues = |name: &str, state: Value, devices: usize| {
            let device = || File::open("/dev/null").map(OwnedFd::from);
            let descriptors = (0..devices).map(|_| device()).collect::<io::Result<_>>().expect("files");
            let state = to_raw_value(&state).expect("JSON");
            taken(TakenTransport { name: name.to_owned(), state, descriptors })
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let state = json!({
            "directory": "/d", "file_system": "0:1", "user": 0, "mode": 0o600, "group": 0, "made_ns": 1,
            "request_bytes": 1 << 20, "next_handle": 2, "open": [{ "handle": 1, "number": 2, "waits": true }],
            "later": "unknown",
        });
        assert_eq!(continues("files", state.clone(), 1), Ok(()));
        for devices in [0, 2] {
            assert!(continues("files", state.clone(), devices).is_err());
        }
        assert!(continues("files", json!({}), 1).is_err());
        assert_eq!(continues("smoke", state, 0), Err("this program cannot continue 'smoke'".to_owned()));
    }
}
