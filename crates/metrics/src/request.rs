//! Requests of clients.

use crate::Format;

/// The longest head of a request.
pub(crate) const MOST_BYTES: usize = 8 << 10;

/// Maximum number of headers in a request.
const MOST_HEADERS: usize = 64;

/// A request that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// More of it must be received.
    Partial,
    /// The metrics, or only the head of their answer.
    Metrics { format: Format, head_only: bool },
    /// The request is refused.
    Refused(Refusal),
}

/// Why a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Malformed,
    TooLarge,
    NotFound,
    Method,
}

impl Refusal {
    /// Returns the status, further headers, and what a person may do.
    pub(crate) fn answer(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Malformed => ("400 Bad Request", "", "the request is malformed\n"),
            Self::TooLarge => ("431 Request Header Fields Too Large", "", "the request's head is longer than 8 KiB\n"),
            Self::NotFound => ("404 Not Found", "", "the metrics are at /metrics\n"),
            Self::Method => ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "use GET or HEAD\n"),
        }
    }
}

/// Decodes the start of a client's request.
pub(crate) fn decode(bytes: &[u8]) -> Request {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MOST_BYTES => return Request::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Request::Refused(Refusal::TooLarge);
        }
        Err(_) => return Request::Refused(Refusal::Malformed),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    if path != "/metrics" {
        return Request::Refused(Refusal::NotFound);
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Request::Refused(Refusal::Method),
    };
    let accept = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept: Vec<_> = accept.filter_map(|header| str::from_utf8(header.value).ok()).collect();
    Request::Metrics { format: chosen(&accept), head_only }
}

/// Returns the format that a client prefers; OpenMetrics if it does not say.
fn chosen(accept: &[&str]) -> Format {
    let weight = |name: &str| {
        let ranges = accept.iter().flat_map(|value| value.split(','));
        let weights = ranges.filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_it = parts.next().is_some_and(|found| found.eq_ignore_ascii_case(name));
            is_it.then(|| parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0_f32))
        });
        weights.fold(0.0, f32::max)
    };
    let (open_metrics, text) = (weight("application/openmetrics-text"), weight("text/plain"));
    if text > open_metrics { Format::Prometheus } else { Format::OpenMetrics }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(line: &str, headers: &str) -> Request {
        decode(format!("{line}\r\nHost: a\r\n{headers}\r\n").as_bytes())
    }

    #[test]
    fn the_format_is_the_one_that_the_client_prefers() {
        let format = |accept: &str| match asked("GET /metrics HTTP/1.1", accept) {
            Request::Metrics { format, head_only: false } => format,
            other => panic!("{accept}: {other:?}"),
        };
        for accept in [
            "",
            "Accept: */*\r\n",
            "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n",
            "accept: text/plain;q=0.3\r\naccept: application/openmetrics-text; q=0.4\r\n",
            "Accept: text/plain;q=0\r\n",
            "Accept: text/html\r\n",
            "Accept: \u{ff}\r\n",
        ] {
            assert_eq!(format(accept), Format::OpenMetrics, "{accept}");
        }
        for accept in [
            "Accept: text/plain\r\n",
            "ACCEPT: Text/Plain; version=0.0.4; q=0.9, application/openmetrics-text;q=0.8\r\n",
        ] {
            assert_eq!(format(accept), Format::Prometheus, "{accept}");
        }
    }

    #[test]
    fn only_the_metrics_are_there() {
        let refused = |refusal| Request::Refused(refusal);
        assert_eq!(asked("GET / HTTP/1.1", ""), refused(Refusal::NotFound));
        assert_eq!(asked("GET /metrics/x HTTP/1.0", ""), refused(Refusal::NotFound));
        assert_eq!(asked("POST /metrics HTTP/1.1", ""), refused(Refusal::Method));
        assert_eq!(asked("GET\0/metrics HTTP/1.1", ""), refused(Refusal::Malformed));
        assert_eq!(asked("GET /metrics HTTP/1.1", &"a: b\r\n".repeat(64)), refused(Refusal::TooLarge));
        let head = Request::Metrics { format: Format::OpenMetrics, head_only: true };
        assert_eq!(asked("HEAD /metrics?name=a HTTP/1.1", ""), head);
        assert_eq!(decode(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"), Request::Partial);
        assert_eq!(decode(&[b'G'; MOST_BYTES]), refused(Refusal::TooLarge));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }
    }
}
