//! Requests for objects of all kinds of servers.

use std::{sync::Arc, time::Instant};

use ureq::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    http::{Client, Outgoing, Reply},
    patience::Failure,
    rest::Rest,
};

/// Maximum number of challenges in a row: a new authorization may expire before it is used.
const MOST_CHALLENGES: u32 = 3;

/// How requests for one object are addressed and authorized.
pub(crate) trait Access: Send + Sync {
    /// Returns the URL for a request.
    fn url(&self, method: &Method) -> Url;

    /// Returns the value of the header `Authorization`.
    fn authorization(&self) -> Option<HeaderValue> {
        None
    }

    /// Returns other headers, only for the server of the URL.
    fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &[]
    }

    /// Returns the record of the server's failures, if one is kept.
    fn rest(&self) -> Option<&Arc<Rest>> {
        None
    }

    /// Handles a reply that refuses the authorization `used`: looks up how to authorize requests.
    /// Returns whether the request may be repeated.
    fn challenged(
        &self,
        _client: &Client,
        _refused: &Reply,
        _used: Option<&HeaderValue>,
        _until: Instant,
    ) -> Result<bool, Failure> {
        Ok(false)
    }
}

/// An object that anyone may read.
pub(crate) struct Public(pub(crate) Url);

impl Access for Public {
    fn url(&self, _method: &Method) -> Url {
        self.0.clone()
    }
}

/// Sends a request, with a new authorization if the server asks for one. The reply may have any
/// status.
pub(crate) fn request(
    client: &Client,
    access: &dyn Access,
    method: &Method,
    headers: &[(HeaderName, HeaderValue)],
    body: Option<&Outgoing<'_>>,
    until: Instant,
) -> Result<Reply, Failure> {
    let mut challenges = 0;
    loop {
        // The URL is new for each request, because it may have a signature that expires.
        let url = access.url(method);
        let used = access.authorization();
        let reply = client.send(method, &url, headers, &own_headers(access, used.as_ref()), body)?;
        challenges += 1;
        // S3 sends 400 if a session has expired.
        let refuses =
            matches!(reply.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST);
        if !refuses || challenges > MOST_CHALLENGES || !access.challenged(client, &reply, used.as_ref(), until)? {
            return Ok(reply);
        }
        reply.finish();
    }
}

/// Returns the headers that only the server of an object gets.
pub(crate) fn own_headers(access: &dyn Access, authorization: Option<&HeaderValue>) -> Vec<(HeaderName, HeaderValue)> {
    let others = access.headers().iter().filter(|(name, _)| authorization.is_none() || *name != header::AUTHORIZATION);
    let authorization = authorization.map(|value| (header::AUTHORIZATION, value.clone()));
    others.cloned().chain(authorization).collect()
}
