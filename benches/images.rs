//! What it takes to know an image's cost: from its header alone, whatever its size, and from headers
//! made to take long.
//!
//! `cargo bench --bench images`. Beside each, what decoding the base64 text alone would take.

#![expect(clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;

use base64::prelude::{BASE64_STANDARD, Engine};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvgate::tokens::images::{ImageRef, Vision};

fn segment(code: u8, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(data.len() + 2).unwrap().to_be_bytes();
    [&[0xff, code], &len[..], data].concat()
}

/// A camera's JPEG: EXIF with a preview, a colour profile, tables, 4032 × 3024 pixels.
fn photo(len: usize) -> Vec<u8> {
    let mut exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0".to_vec();
    exif.resize(20_000, 7);
    let frame = [8, 0x0b, 0xd0, 0x0f, 0xc0, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1];
    let parts = [
        b"\xff\xd8".to_vec(),
        segment(0xe0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"),
        segment(0xe1, &exif),
        segment(0xe2, &[0; 3000]),
        segment(0xdb, &[0; 130]),
        segment(0xc0, &frame),
        segment(0xda, &[0; 10]),
    ];
    let mut photo = parts.concat();
    photo.resize(len, 0x55);
    photo
}

fn url(bytes: &[u8]) -> String {
    format!("data:image/jpeg;base64,{}", BASE64_STANDARD.encode(bytes))
}

/// A start, and one piece over and over up to 6 MiB.
fn endless(start: &[u8], piece: &[u8]) -> String {
    url(&start.iter().chain(piece.iter().cycle()).take(6 << 20).copied().collect::<Vec<u8>>())
}

fn images(c: &mut Criterion) {
    let processor = br#"{"min_pixels": 3136, "max_pixels": 12845056}"#;
    let vision = Vision::read(br#"{"model_type": "qwen2_5_vl"}"#, Some(processor), None).unwrap().unwrap();
    let mut group = c.benchmark_group("images");
    for (name, url) in [
        ("photo of 4 MiB", url(&photo(4 << 20))),
        ("markers without end", endless(b"\xff\xd8\xff", b"\xff\xe4\x00\x02")),
        ("stray bytes without end", endless(b"\xff\xd8\xff\xd0", b"x")),
        ("chunks without end", endless(b"\x89PNG\r\n\x1a\n", b"\0\0\0\0tEXt\0\0\0\0")),
    ] {
        group.throughput(Throughput::Bytes(url.len() as u64));
        group.bench_function(name, |b| b.iter(|| vision.cost(black_box(ImageRef::Url(&url)))));
    }
    let photo = BASE64_STANDARD.encode(photo(4 << 20));
    group.throughput(Throughput::Bytes(photo.len() as u64));
    group.bench_function("photo of 4 MiB, decoded", |b| {
        b.iter(|| BASE64_STANDARD.decode(black_box(&photo)).unwrap())
    });
    group.finish();
}

criterion_group!(benches, images);
criterion_main!(benches);
