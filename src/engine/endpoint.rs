//! Where the engine listens.

use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};

use super::Error;

/// The engine's address and base path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    authority: Authority,
    /// Empty, or begins with `/` and does not end in one.
    base: String,
}

impl Endpoint {
    /// `HOST[:PORT]` as configured: the Host header of a request to the engine.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The host, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// The port; 80 where none is given.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(80)
    }

    /// The path prefix: empty, or `/base` without a slash at its end.
    #[must_use]
    pub fn base_path(&self) -> &str {
        &self.base
    }

    /// The URI of a path of the engine, base path added; `path` may carry a query.
    ///
    /// # Errors
    /// [`Error::Url`] where `path` is no path.
    pub fn uri(&self, path: &str) -> Result<Uri, Error> {
        let bad = |_| Error::Url { url: path.to_owned(), reason: "it is not a path of the engine" };
        let full: PathAndQuery = if self.base.is_empty() {
            path.parse().map_err(bad)?
        } else {
            format!("{}{path}", self.base).parse().map_err(bad)?
        };
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(full);
        Uri::from_parts(parts)
            .map_err(|_| Error::Url { url: path.to_owned(), reason: "it is not a path of the engine" })
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let bad = |reason| Error::Url { url: shown(url), reason };
        if url.contains('#') {
            return Err(bad("it must have no fragment (`#…`)"));
        }
        let uri: Uri = url
            .parse()
            .map_err(|_| bad("it is no URL; write http://HOST:PORT, such as http://127.0.0.1:8000"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(bad("https to the engine is not supported yet; use http")),
            _ => return Err(bad("it must begin with http://")),
        }
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it must hold no user or password; put the engine's key into engine.key_file"));
        }
        if authority.host().is_empty() {
            return Err(bad("it has no host"));
        }
        if authority.port().is_none()
            && authority.as_str().ends_with(|c: char| c == ':' || c.is_ascii_digit())
            && authority.as_str().len() > authority.host().len()
        {
            return Err(bad("its port is not a number from 1 to 65535"));
        }
        if authority.port_u16() == Some(0) {
            return Err(bad("its port is not a number from 1 to 65535"));
        }
        if uri.query().is_some() {
            return Err(bad("it must have no query (`?…`)"));
        }
        let base = uri.path().trim_end_matches('/');
        if base == "/v1" || base.ends_with("/v1") {
            return Err(bad("leave out the `/v1` at the end; kvgate adds the paths itself"));
        }
        Ok(Self { authority: authority.clone(), base: base.to_owned() })
    }
}

/// The URL for an error's text, without what may be a password.
fn shown(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(start), Some(at)) if at > start => format!("{}://…{}", &url[..start], &url[at..]),
        _ => url.chars().take(200).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_port_and_base_path_are_taken_apart() {
        let end: Endpoint = "http://engine.local:8000/gpu0/".parse().unwrap();
        assert_eq!((end.host(), end.port(), end.base_path()), ("engine.local", 8000, "/gpu0"));
        assert_eq!(end.uri("/v1/models?x=1").unwrap(), "http://engine.local:8000/gpu0/v1/models?x=1");
        let end: Endpoint = "http://[::1]".parse().unwrap();
        assert_eq!((end.host(), end.port(), end.base_path()), ("::1", 80, ""));
        assert_eq!(end.uri("/health").unwrap(), "http://[::1]/health");
    }

    #[test]
    fn each_wrong_url_says_what_to_write_instead() {
        for (url, word) in [
            ("https://x:1", "https"),
            ("ftp://x:1", "http://"),
            ("127.0.0.1:8000", "http://"),
            ("", "no URL"),
            ("http://", "no URL"),
            ("http://me:secret@x:1", "key_file"),
            ("http://x:1/?a=b", "query"),
            ("http://x:1/#a", "fragment"),
            ("http://x:99999", "port"),
            ("http://x:0", "port"),
            ("http://x:1/v1", "/v1"),
            ("http://x y", "no URL"),
        ] {
            let text = url.parse::<Endpoint>().unwrap_err().to_string();
            assert!(text.contains(word), "{url}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = text.parse::<Endpoint>();
        }
    }
}
