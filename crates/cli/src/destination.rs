//! Outputs on the command line.

use std::{fs, io, path::PathBuf, sync::mpsc, thread};

use clap::ValueEnum;
use pagefold_output::{Destination, Draft, Error, ImageFormat, WhenNamed};
use signal_hook::low_level::emulate_default_handler;

use crate::{report::misuse, signals};

/// The argument of `--format`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FormatArg {
    /// A compressed image
    Erofs,
    /// A raw disk, with holes for zeros
    Raw,
    /// QEMU's format, version 3
    Qcow2,
}

impl From<FormatArg> for ImageFormat {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Erofs => Self::Erofs,
            FormatArg::Raw => Self::Raw,
            FormatArg::Qcow2 => Self::Qcow2,
        }
    }
}

/// Marks the error of a name that contradicts its format as caused by the command line.
pub(crate) fn wrong_name(error: Error) -> anyhow::Error {
    match error {
        Error::Name(_) => misuse(error),
        error => error.into(),
    }
}

/// Creates a file to build an image in. If it has a name, it is removed when a signal that can be
/// caught ends the program.
pub(crate) fn draft(destination: &Destination) -> anyhow::Result<Draft> {
    Ok(destination.make_guarded_draft(&remove_on_signals)?)
}

/// Catches signals, which then remove the file whose path the returned function is given.
pub(crate) fn remove_on_signals() -> io::Result<WhenNamed> {
    let mut signals = signals::catch()?;
    let (sender, receiver) = mpsc::channel::<PathBuf>();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let path = receiver.recv();
        for signal in signals.forever() {
            let _ = path.as_ref().map(fs::remove_file);
            let _ = emulate_default_handler(signal);
        }
    })?;
    // The thread waits for the path.
    Ok(Box::new(move |path| drop(sender.send(path.to_owned()))))
}
