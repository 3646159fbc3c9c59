use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const SOON: Duration = Duration::from_secs(20);

/// One connection that is sent `answer` after its request head; gives the request.
async fn once(answer: Vec<u8>) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        let n = stream.read(&mut buffer).await.unwrap();
        let _ = stream.write_all(&answer).await;
        let _ = stream.shutdown().await;
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    });
    (port, task)
}

fn client(url: String) -> Client {
    Client::new(&Settings { url, ..Settings::default() }).unwrap()
}

async fn outcome(answer: &[u8]) -> Result<Answer, Error> {
    let (port, _task) = once(answer.to_vec()).await;
    client(format!("http://127.0.0.1:{port}")).get("/x", Connection::Fresh, SOON).await
}

#[tokio::test]
async fn key_base_path_and_host_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let key_file = dir.path().join("key");
    std::fs::write(&key_file, "s3cret\n").unwrap();
    let (port, task) = once(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi".to_vec()).await;
    let url = format!("http://127.0.0.1:{port}/gpu0");
    let client =
        Client::new(&Settings { url, key_file: Some(key_file.clone()), ..Settings::default() }).unwrap();
    let answer = client.post("/tokenize?a=b", Bytes::from_static(b"{}"), SOON).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (200, &b"hi"[..]));
    let request = task.await.unwrap().to_ascii_lowercase();
    assert!(request.starts_with("post /gpu0/tokenize?a=b http/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: bearer s3cret\r\n"), "{request}");
    assert!(request.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{request}");
    assert!(!format!("{client:?}").contains("s3cret"));

    std::fs::write(&key_file, "other").unwrap();
    client.reload_key().unwrap();
    assert_eq!(client.authorization().unwrap(), "Bearer other");
    std::fs::write(&key_file, " \n").unwrap();
    assert!(matches!(client.reload_key(), Err(Error::KeyFile { .. })));
    assert_eq!(client.authorization().unwrap(), "Bearer other");
}

#[tokio::test]
async fn a_refused_connection_is_told_from_a_slow_and_a_broken_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = client(format!("http://127.0.0.1:{port}"));
    assert_eq!(client.fresh_connect().await, Connect::Ok);
    let slow = client.get("/x", Connection::Fresh, Duration::from_millis(50)).await;
    assert_eq!(slow, Err(Error::Timeout { after: Duration::from_millis(50) }));
    drop(listener);
    assert_eq!(client.fresh_connect().await, Connect::Refused);
    for connection in [Connection::Fresh, Connection::Pooled] {
        assert_eq!(client.get("/x", connection, SOON).await, Err(Error::Refused));
    }
}

#[tokio::test]
async fn an_answer_that_ends_early_is_a_reset() {
    assert_eq!(outcome(b"").await, Err(Error::Reset));
    assert_eq!(outcome(b"HTTP/1.1 200 OK\r\ncont").await, Err(Error::Reset));
    assert_eq!(outcome(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi").await, Err(Error::Reset));
}

#[tokio::test]
async fn an_answer_that_is_no_http_or_too_long_is_said_to_be() {
    assert!(matches!(outcome(b"SSH-2.0-x\r\n\r\n").await, Err(Error::BadAnswer { .. })));
    let mut long = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", MAX_BODY + 1).into_bytes();
    long.resize(long.len() + MAX_BODY + 1, b'x');
    assert_eq!(outcome(&long).await, Err(Error::TooLarge { limit: MAX_BODY }));
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_unreachable() {
    let client = client("http://no-such-host.invalid:1".to_owned());
    let error = client.get("/x", Connection::Fresh, SOON).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. } | Error::Timeout { .. }), "{error}");
}
