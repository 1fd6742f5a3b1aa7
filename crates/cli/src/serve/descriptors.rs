//! The limit of open files, which bounds the clients of a server.

use pagefold_serve::{Limits, SPARE_DESCRIPTORS};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of a server in addition to those of NBD clients: clients of the control socket,
/// sockets, bases and standard streams.
const OTHER_DESCRIPTORS: usize = 64;

/// Raises the limit of open files to what the system allows, for a server whose disks each have a
/// socket.
pub(crate) fn allow_most() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If this fails, the old limit remains.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Returns the open files that a server with the usual limits may need.
pub(crate) fn needed() -> u64 {
    let limits = Limits::default();
    (limits.connections + others(limits)) as u64
}

fn others(limits: Limits) -> usize {
    limits.negotiating + limits.private + OTHER_DESCRIPTORS
}

/// Raises the limit of open files to what this many connections need, because the default limit is
/// often lower. Returns a warning if the system refuses.
pub(crate) fn allow(connections: usize, limits: Limits) -> Option<String> {
    let needed = connections.saturating_add(others(limits)) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return None;
    }
    let allowed = maximum.map_or(needed, |maximum| maximum.min(needed));
    // If this fails, the old limit remains.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum });
    (allowed < needed).then(|| {
        let most = allowed.saturating_sub(SPARE_DESCRIPTORS);
        format!(
            "{connections} connections may need {needed} open files, and the system allows {allowed}: at most {most} are \
             served, less one for each socket and base; raise the limit (ulimit -Hn, LimitNOFILE=), or allow fewer \
             connections"
        )
    })
}
