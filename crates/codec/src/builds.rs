//! Every build of a codec's hot loops, for tests and fuzzing.

use crate::{Codec, CodecId, Stream, StreamError, Tables};

/// Returns a stream of `codec` for each build of its hot loops that this CPU can run, for tests and
/// fuzzing. All builds give the same results.
pub fn streams_of_every_build(codec: &dyn Codec) -> Result<Vec<Box<dyn Stream>>, StreamError> {
    Ok(match (codec.id(), codec.tables()) {
        (_, Some(Tables::Fold(tables))) => crate::fold::streams_of_every_build_with(&tables),
        (CodecId::Fold, None) => crate::fold::streams_of_every_build(),
        (_, Some(Tables::Pleat(tables))) => crate::pleat::streams_of_every_build(&tables),
        _ => vec![codec.stream()?],
    })
}
