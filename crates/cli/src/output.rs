//! Standard output. Its errors are distinguishable from others: the reader may have stopped
//! reading.

use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, ErrorKind, Write},
};

use pagefold_output::standard_output;

/// Returns buffered standard output. The caller must flush it at the end.
pub(crate) fn output() -> BufWriter<Output> {
    BufWriter::new(Output(standard_output()))
}

/// Returns whether the error means that the output has no reader anymore, which is not a failure.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    lost(error).is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Returns whether the error is one of writing to standard output.
pub(crate) fn is_lost(error: &anyhow::Error) -> bool {
    lost(error).is_some()
}

fn lost(error: &anyhow::Error) -> Option<&io::Error> {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.find(|error| error.get_ref().is_some_and(|inner| inner.is::<OutputError>()))
}

/// Standard output. If it was closed at the start, the first write fails.
pub(crate) struct Output(io::Result<File>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.0 {
            Ok(file) => file.write(bytes),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        written.map_err(as_output_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct OutputError(io::Error);

fn as_output_error(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, OutputError(error)),
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for OutputError {}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn only_a_closed_output_is_not_a_failure() {
        let closed = || io::Error::from(ErrorKind::BrokenPipe);
        let output = Err::<(), _>(as_output_error(closed())).context("listing").unwrap_err();
        assert!(is_closed(&output));
        assert!(!is_closed(&anyhow::Error::new(closed())), "of a socket, say");
        assert!(!is_closed(&anyhow::Error::new(as_output_error(ErrorKind::StorageFull.into()))));
    }
}
