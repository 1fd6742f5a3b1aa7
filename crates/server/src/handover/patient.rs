//! Retries to open bases when a process starts that continues a server which has ended: at boot,
//! for example, a network or a mount may come later. Giving up would lose the disks.

use std::{
    io::{self, ErrorKind},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_storage::Open;

use crate::{DescriptorStore, Observer};

/// How long to wait for a base, and the pauses between two attempts.
const PATIENCE: Duration = Duration::from_secs(600);
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// The additional time that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(60);

/// Retries to open the storage of bases until it [ends](Self::end).
pub(super) struct Patient(Arc<AtomicBool>);

impl Patient {
    /// Begins. Notifies `store` that the start takes longer.
    pub(super) fn begin(open: &mut Arc<Open>, store: &Arc<dyn DescriptorStore>, observer: &Observer) -> Self {
        let begun = Arc::new(AtomicBool::new(true));
        let (once, waits) = (Arc::clone(open), Arc::clone(&begun));
        let (store, observer) = (Arc::clone(store), observer.clone());
        *open = Arc::new(move |path: &Path| {
            let start = Instant::now();
            let mut pause = FIRST;
            loop {
                let error = match once(path) {
                    Err(error) if waits.load(SeqCst) && may_pass(&error) && start.elapsed() < PATIENCE => error,
                    opened => return opened,
                };
                if pause == FIRST {
                    let path = pagefold_storage::shown(path);
                    observer.warn(&format!("the start waits for the base {path}: {error}"));
                }
                store.begins_within(pause + ATTEMPT);
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
        });
        Self(begun)
    }

    /// From now on, a base that cannot be opened is an error immediately.
    pub(super) fn end(&self) {
        self.0.store(false, SeqCst);
    }
}

/// Returns whether the same call may succeed later.
fn may_pass(error: &io::Error) -> bool {
    !matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput | ErrorKind::InvalidData)
}
