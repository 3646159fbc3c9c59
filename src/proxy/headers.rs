//! Which headers go on to the engine, and which come back.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Headers that belong to one connection (RFC 9110, 7.6.1), and those that re-framing makes anew.
const HOP_BY_HOP: &[HeaderName] = &[
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// kvgate's id, in every answer.
pub const OUR_ID: HeaderName = HeaderName::from_static("x-kvgate-request-id");
/// The client's id, echoed; the engine's id on the way there.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Removes what belongs to one connection, and what `Connection` names.
pub fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// The client's headers as the engine shall see them; framing, host and ids are set by the caller.
pub fn to_engine(headers: &mut HeaderMap) {
    drop_hop_by_hop(headers);
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::EXPECT);
    // These steer the engine past admission (data-parallel rank, SGLang's overrides) or speak to kvgate.
    let steering: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            name.starts_with("x-kvgate-") || name.starts_with("x-override-") || name == "x-data-parallel-rank"
        })
        .cloned()
        .collect();
    for name in steering {
        headers.remove(name);
    }
}

/// The engine's headers as the client shall see them.
pub fn to_client(headers: &mut HeaderMap, our_id: &HeaderValue, shown_id: &HeaderValue) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // RFC 9112, 6.3: the length is then not what counts.
        headers.remove(header::CONTENT_LENGTH);
    }
    drop_hop_by_hop(headers);
    let ours: Vec<HeaderName> =
        headers.keys().filter(|n| n.as_str().starts_with("x-kvgate-")).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
    headers.insert(OUR_ID, our_id.clone());
    headers.insert(REQUEST_ID, shown_id.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn nothing_of_one_connection_goes_on() {
        let mut headers = map(&[
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-type", "application/json"),
        ]);
        drop_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("content-type", "application/json")]));
    }

    #[test]
    fn a_length_beside_chunked_framing_is_not_passed_on_nor_what_only_we_may_say() {
        let mut headers = map(&[
            ("content-length", "3"),
            ("transfer-encoding", "chunked"),
            ("x-kvgate-reason", "rate_limited"),
        ]);
        to_client(&mut headers, &HeaderValue::from_static("kg-1"), &HeaderValue::from_static("mine"));
        assert_eq!(headers, map(&[("x-kvgate-request-id", "kg-1"), ("x-request-id", "mine")]));
    }

    #[test]
    fn steering_headers_of_clients_are_dropped() {
        let mut headers = map(&[
            ("x-override-rid", "1"),
            ("x-data-parallel-rank", "0"),
            ("x-kvgate-max-wait", "9"),
            ("host", "a"),
            ("expect", "100-continue"),
            ("authorization", "Bearer k"),
        ]);
        to_engine(&mut headers);
        assert_eq!(headers, map(&[("authorization", "Bearer k")]));
    }
}
