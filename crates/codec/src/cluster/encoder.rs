//! The interface of encoders of clusters, and how much a decoder must return.

/// The outcome of filling one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Input bytes that the cluster holds.
    pub consumed: usize,
    /// Output bytes written, from the front.
    pub written: usize,
}

/// A parameter outside its codec's range, no memory for an encoder, or a codec that is not in this
/// build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("codec {codec}: {what}")]
#[non_exhaustive]
pub struct EncoderError {
    /// The codec's name.
    pub codec: &'static str,
    /// What is wrong.
    pub what: &'static str,
}

/// An encoder of fixed-size clusters for one thread.
pub trait ClusterEncoder: Send {
    /// Compresses the longest prefix of `src` that it can fit into `dst`. If nothing is gained (not
    /// fewer bytes written than consumed), returns `None` and `dst` holds unspecified bytes. The
    /// first byte written is never 0, so that a reader can find the start of a cluster that is
    /// padded in front. The result depends only on `src`, `dst.len()` and the calls since
    /// [`restart`](ClusterEncoder::restart).
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled>;

    /// Does the same as [`fill`](ClusterEncoder::fill) with several times the effort, to fit a
    /// little more. Also returns `None` if this encoder has no such mode.
    fn fill_harder(&mut self, _src: &[u8], _dst: &mut [u8]) -> Option<Filled> {
        None
    }

    /// Forgets what the encoder learned from earlier clusters, so that the output no longer depends
    /// on them.
    fn restart(&mut self) {}
}

/// How much of a cluster's content is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// All of the content, which is exactly as long as the buffer.
    Whole,
    /// A prefix of the content, which is at least as long as the buffer. Input may be left over.
    Prefix,
}
