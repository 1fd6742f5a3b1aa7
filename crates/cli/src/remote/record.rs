//! `serve --record`: writes which chunks of a remote image are read first.

use std::{
    ffi::OsString,
    fs::{self, Metadata},
    io::Write,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, anyhow};
use pagefold_output::{Inputs, NewFile, Written};
use pagefold_remote::Recorder;

use super::RemoteArgs;
use crate::{log::Log, report::misuse, size};

/// Interval at which the recorder is checked.
const INTERVAL: Duration = Duration::from_millis(50);

/// Which reads are recorded.
#[derive(clap::Args)]
pub(crate) struct RecordArgs {
    /// Record to TRACE the parts of FILE that are read first, with their bytes, until nothing new is
    /// read for a second, or for 30 seconds. FILE must be a URL, and the only FILE. 'pagefold push
    /// --trace' stores TRACE with the image
    #[arg(long, value_name = "TRACE", requires = "files")]
    record: Option<PathBuf>,
}

/// A recording that has not been written.
pub(crate) struct Recording {
    recorder: Arc<Recorder>,
    file: Mutex<Option<NewFile>>,
    log: Log,
}

impl RecordArgs {
    /// Returns the arguments with which files are opened, and the recording, if one was requested.
    pub(crate) fn begin(
        &self,
        remote: &RemoteArgs,
        files: &[OsString],
        log: Log,
    ) -> anyhow::Result<(RemoteArgs, Option<Arc<Recording>>)> {
        let mut remote = remote.clone();
        remote.follows_traces = true;
        let Some(path) = &self.record else { return Ok((remote, None)) };
        let is_url = |file: &OsString| {
            let text = file.as_encoded_bytes();
            let named = text.iter().position(|byte| *byte == b'=').map_or(text, |at| &text[at + 1..]);
            [text, named].into_iter().any(pagefold_remote::Location::is_in)
        };
        if !matches!(files, [file] if is_url(file)) {
            return Err(misuse(anyhow!("--record is for a single FILE, which must be a URL")));
        }
        // The path must stay valid after the process has changed its directory.
        let path = std::path::absolute(path)?;
        let file = NewFile::at(&path, Written::Trace, false, &Inputs::default())?;
        let is_log = |found: Metadata| log.is_written_to((found.dev(), found.ino()));
        if fs::metadata(&path).is_ok_and(is_log) {
            return Err(misuse(anyhow!("--record {}: this server writes its log to it", path.display())));
        }
        let recorder = Arc::new(Recorder::default());
        remote.recorder = Some(Arc::clone(&recorder));
        Ok((remote, Some(Arc::new(Recording { recorder, file: Mutex::new(Some(file)), log }))))
    }
}

impl Recording {
    /// Starts a thread that writes the trace when it is quiet.
    pub(crate) fn start(self: &Arc<Self>) -> anyhow::Result<()> {
        self.recorder.start();
        let recording = Arc::clone(self);
        let work = move || {
            while !recording.recorder.is_over() {
                thread::sleep(INTERVAL);
            }
            recording.finish();
        };
        thread::Builder::new().name("record".to_owned()).spawn(work).context("cannot start a thread")?;
        Ok(())
    }

    /// Writes the trace, unless that is done.
    pub(crate) fn finish(&self) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(new) = file.take() else { return };
        match self.write(&new) {
            Ok((chunks, bytes)) => {
                let path = new.path().display();
                self.log.info(&format!("wrote {path}: a trace of {chunks} chunks, {}", size::show(bytes)));
            }
            Err(error) => self.log.error(&format!("no trace is written: {error:#}")),
        }
    }

    fn write(&self, new: &NewFile) -> anyhow::Result<(usize, u64)> {
        let draft = new.make_draft()?;
        let mut to = std::io::BufWriter::new(draft.file());
        let written = self.recorder.write(&mut to).context("a chunk cannot be read")?;
        to.flush().with_context(|| new.path().display().to_string())?;
        drop(to);
        new.take(draft)?;
        Ok(written)
    }
}
