//! The pure parts of a request's way: read the body, count it, look at the events of the answer.
//!
//! `cargo bench --bench path`. Ratios at the end: each against copying the same bytes once.
#![expect(clippy::unwrap_used, reason = "a benchmark may stop")]

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvgate::proxy::events::{Splitter, Take, says};
use kvgate::request::{Api, TenantKey, Trail, dialect};
use kvgate::tokens::Encoder;

/// A chat body of about so many bytes of English-like text.
fn chat(bytes: usize) -> Vec<u8> {
    let words = "The gateway counts each prompt as the engine will, and tells the client at once. ";
    let text: String = words.chars().cycle().take(bytes).collect();
    serde_json::json!({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 64, "stream": true})
        .to_string()
        .into_bytes()
}

fn read_and_count(c: &mut Criterion) {
    let encoder = Encoder::from_parts(
        kvgate::sim::tokenizer_json(),
        Some(kvgate::sim::tokenizer_config()),
        Some(kvgate::sim::chat_template()),
    )
    .unwrap();
    for (name, bytes) in [("1KB", 1 << 10), ("32KB", 32 << 10), ("512KB", 512 << 10)] {
        let body = chat(bytes);
        let mut group = c.benchmark_group("request");
        group.throughput(Throughput::Bytes(body.len() as u64)).measurement_time(Duration::from_secs(2));
        group.bench_with_input(BenchmarkId::new("copy", name), &body, |b, body| {
            b.iter(|| black_box(body.to_vec()))
        });
        group.bench_with_input(BenchmarkId::new("read", name), &body, |b, body| {
            b.iter(|| dialect::read(Api::Chat, black_box(body)).unwrap());
        });
        let reading = dialect::read(Api::Chat, &body).unwrap();
        group.bench_with_input(BenchmarkId::new("beginnings", name), &reading, |b, reading| {
            let key = TenantKey::from_bytes([7; 16]);
            b.iter(|| Trail::of(black_box(&reading.prompt), &key));
        });
        group.sample_size(10).bench_with_input(BenchmarkId::new("count", name), &reading, |b, reading| {
            b.iter(|| encoder.count(black_box(reading), SystemTime::UNIX_EPOCH, None).unwrap());
        });
    }
}

fn relay(c: &mut Criterion) {
    let event = b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";
    let chunk = Bytes::from_static(event);
    let mut group = c.benchmark_group("event");
    group.throughput(Throughput::Bytes(event.len() as u64)).measurement_time(Duration::from_secs(2));
    group.bench_function("copy", |b| b.iter(|| black_box(chunk.to_vec())));
    group.bench_function("split_and_look", |b| {
        let mut splitter = Splitter::new(1 << 20);
        let mut out = Vec::with_capacity(1);
        b.iter(|| {
            out.clear();
            splitter.push(chunk.clone(), &mut out, |event| {
                black_box(says(event));
                Take::Keep
            })
        });
    });
}

criterion_group!(benches, read_and_count, relay);
criterion_main!(benches);
