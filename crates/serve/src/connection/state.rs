//! The state of a connection that is handed over.

use super::parked::{Parked, Unfinished};
use crate::{
    adopt_error::AdoptError,
    handover::{ClientState, UnfinishedState},
    pieces::Pieces,
    protocol::{Errno, MAX_PAYLOAD_BYTES},
    request::{Arrived, Refusal},
    session::Session,
};

impl ClientState {
    pub(crate) fn of(export: String, session: &Session, parked: &Parked, output: &[u8]) -> Self {
        let unfinished = parked.unfinished.as_ref().map(|Unfinished { pieces, left_bytes }| UnfinishedState {
            request: *pieces.request,
            left_bytes: *left_bytes,
            failure: pieces.refusal().map(|refusal| (refusal.errno as u32, refusal.message)),
        });
        Self {
            export,
            headers: session.headers,
            contexts: session.contexts.clone(),
            input: parked.input.clone(),
            output: output.to_vec(),
            unfinished,
        }
    }

    /// Returns the state with which a leader continues.
    pub(crate) fn into_parked(self, session: &Session) -> Result<(Parked, Vec<u8>), AdoptError> {
        let Self { input, output, unfinished, .. } = self;
        let unfinished = unfinished.map(|UnfinishedState { request, left_bytes, failure }| {
            // Other requests are refused before their payload is received.
            let is_checked = request.len_bytes <= u64::from(MAX_PAYLOAD_BYTES)
                && request.offset.checked_add(request.len_bytes).is_some()
                && left_bytes <= request.len_bytes;
            if failure.is_none() && !is_checked {
                return Err(AdoptError::Invalid("an unfinished request is longer than possible"));
            }
            let pieces = Pieces::new(Arrived::new(request, session));
            if let Some((errno, message)) = failure {
                pieces.fail(Refusal::new(Errno::of_linux(i32::try_from(errno).unwrap_or_default()), message));
            }
            Ok(Unfinished { pieces, left_bytes })
        });
        Ok((Parked { input, unfinished: unfinished.transpose()?, arrived: None, is_paced: false, turn: None }, output))
    }
}
