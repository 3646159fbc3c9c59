//! Counting: speed, the next turn of a conversation, hostile text, and memory, each as a ratio against the
//! reference (Hugging Face `tokenizers` 0.23) in the same run, on one processor.
//!
//! `cargo bench --bench tokens` takes the tokenizers of `$KVGATE_TOKENIZERS` (`tests/real/tokenizers.sh DIR`
//! fetches them), or without that the one of the simulated engine. `-- speed qwen3` runs one part for one of
//! them; parts: speed turn hostile memory, `lanes`: how long a prompt of 1 KB waits beside some of 512 KB, and
//! `bounds`: which share of real prompts needs no tokenizing.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may stop, and prints")]

mod bounds;
mod corpora;
mod hostile;

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use kvgate::request::{Api, dialect};
use kvgate::tokens::{Counter, Encoder, Extent, Settings, Tokenizer};

use bounds::bounds;
use corpora::{Corpora, documents};
use hostile::hostile;

fn main() {
    kvgate::tokens::one_thread_a_count();
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let parts = ["speed", "turn", "hostile", "memory", "lanes", "bounds"];
    let wanted =
        |part: &str| !args.iter().any(|a| parts.contains(&a.as_str())) || args.iter().any(|a| a == part);
    let corpora = Corpora::read();
    if wanted("lanes") {
        lanes(&corpora);
    }
    for (name, json) in tokenizers() {
        if !args.iter().all(|a| parts.contains(&a.as_str()) || *a == name) {
            continue;
        }
        let before = resident();
        let mut tokenizer = Tokenizer::load(&json).unwrap();
        let after = resident();
        println!("\n{name}: counted by {:?}", tokenizer.counted_by());
        if wanted("memory") {
            println!("  memory: {:.0} MB for its tables", (after - before) as f64 / 1e6);
        }
        if wanted("bounds") {
            bounds(&tokenizer, &corpora);
        }
        if wanted("speed") {
            speed(&tokenizer, &corpora);
        }
        if wanted("turn") {
            turn(&mut tokenizer, &corpora);
        }
        if wanted("hostile") {
            hostile(&mut tokenizer);
            println!("  memory: {:.0} MB after hostile text", (resident() - before) as f64 / 1e6);
        }
        if wanted("memory") {
            println!("  memory: {:.0} MB after all", (resident() - before) as f64 / 1e6);
        }
    }
}

/// Names and files.
fn tokenizers() -> Vec<(String, Vec<u8>)> {
    let Some(dir) = std::env::var_os("KVGATE_TOKENIZERS").map(PathBuf::from) else {
        return vec![("sim".to_owned(), kvgate::sim::tokenizer_json().to_vec())];
    };
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let json = std::fs::read(entry.path().join("tokenizer.json")).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), json))
        })
        .collect();
    found.sort();
    found
}

/// Bytes of memory in use.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// The processor's time for it: other work on the machine does not count.
fn timed(mut work: impl FnMut()) -> Duration {
    let start = ThreadTime::now();
    work();
    start.elapsed()
}

fn speed(tokenizer: &Tokenizer, corpora: &Corpora) {
    println!("  {:14} {:>7} {:>12} {:>12} {:>8}", "unseen text", "bytes", "reference", "kvgate", "ratio");
    for (number, bytes) in [2 << 10, 32 << 10, 512 << 10].into_iter().enumerate() {
        for (name, text) in &corpora.all {
            // Each size has its own part of the text; the first half warms up.
            let part = text.len() / 3;
            let text = &text[text.floor_char_boundary(part * number)..];
            let (warm, cold) =
                (documents(text, bytes, part / 2, 0), documents(text, bytes, part / 2, part / 2));
            let few: Vec<_> = cold.iter().take((1 << 20) / bytes).collect();
            let reference = timed(|| {
                for text in &few {
                    black_box(tokenizer.backend().reference_ids(text, false).unwrap());
                }
            });
            warm.iter().for_each(|text| _ = black_box(tokenizer.count(text, false, &Extent::WHOLE).unwrap()));
            let ours = timed(|| {
                for text in &cold {
                    black_box(tokenizer.count(text, false, &Extent::WHOLE).unwrap());
                }
            });
            let rate =
                |time: Duration, documents: usize| (documents * bytes) as f64 / time.as_secs_f64() / 1e6;
            let (reference, ours) = (rate(reference, few.len()), rate(ours, cold.len()));
            println!("  {name:14} {bytes:7} {reference:7.1} MB/s {ours:7.1} MB/s {:7.1}x", ours / reference);
        }
    }
}

/// A conversation of 40 turns, each about 8 KB: the last turn, with and without what was remembered.
fn turn(tokenizer: &mut Tokenizer, corpora: &Corpora) {
    let token =
        tokenizer.backend().added().iter().find(|token| token.contains("im_end") || token.contains("eot"));
    let token = token.or(tokenizer.backend().added().last()).cloned().unwrap_or_default();
    let english = &corpora.all[0].1;
    let turns: Vec<String> = documents(english, 8 << 10, 41 * (8 << 10), 0)
        .into_iter()
        .map(|text| format!("\nuser\n{text}{token}"))
        .collect();
    let before = turns[..40].concat();
    let whole = turns.concat();
    let least = |runs: &mut dyn FnMut() -> Duration| (0..7).map(|_| runs()).min().unwrap();
    tokenizer.remember(0);
    let alone =
        least(&mut || timed(|| _ = black_box(tokenizer.count(&whole, false, &Extent::WHOLE).unwrap())));
    let next = least(&mut || {
        tokenizer.remember(200_000);
        tokenizer.count(&before, false, &Extent::WHOLE).unwrap();
        timed(|| _ = black_box(tokenizer.count(&whole, false, &Extent::WHOLE).unwrap()))
    });
    let again =
        least(&mut || timed(|| _ = black_box(tokenizer.count(&whole, false, &Extent::WHOLE).unwrap())));
    let exact = tokenizer.backend().reference_ids(&whole, false).unwrap().len() as u64;
    assert_eq!(tokenizer.count(&whole, false, &Extent::WHOLE).unwrap().tokens, exact);
    println!(
        "  next turn of {} KB: whole by the fast path {alone:?}, next turn {next:?} ({:.1} %), again {again:?} ({:.1} %)",
        whole.len() >> 10,
        100.0 * next.as_secs_f64() / alone.as_secs_f64(),
        100.0 * again.as_secs_f64() / alone.as_secs_f64(),
    );
}

/// A prompt of 1 KB through the lanes, alone and while eight clients have prompts of 512 KB counted without a pause.
fn lanes(corpora: &Corpora) {
    let folder =
        std::env::var_os("KVGATE_TOKENIZERS").map(|dir| PathBuf::from(dir).join("llama3/tokenizer.json"));
    let json = folder.and_then(|path| std::fs::read(path).ok());
    let json = json.unwrap_or_else(|| kvgate::sim::tokenizer_json().to_vec());
    let settings = Settings { cache_entries: 0, ..Settings::default() };
    let encoder = Encoder::from_parts(&json, None, None).unwrap().with_options((&settings).into());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let counter = Counter::new(&settings);
        counter.use_encoder(Arc::new(encoder), String::new());
        let body = |text: &str| serde_json::json!({ "prompt": text }).to_string();
        let text = &corpora.all[0].1;
        let (short, long) =
            (documents(text, 1 << 10, 2 << 20, 0), documents(text, 512 << 10, 3 << 20, 2 << 20));
        let run = async || {
            let mut times = Vec::new();
            for text in short.iter().cycle().take(4000) {
                let reading = Arc::new(dialect::read(Api::Completions, body(text).as_bytes()).unwrap());
                let start = Instant::now();
                counter.count(&reading, None, "short").await.unwrap();
                times.push(start.elapsed());
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            times.sort_unstable();
            [times[times.len() / 2], times[times.len() * 99 / 100]]
        };
        run().await;
        let quiet = run().await;
        let others: Vec<_> = (0..8)
            .map(|number| {
                let (counter, text) = (counter.clone(), body(long[number % long.len()]));
                tokio::spawn(async move {
                    let reading = Arc::new(dialect::read(Api::Completions, text.as_bytes()).unwrap());
                    loop {
                        let _ = counter.count(&reading, None, &format!("long {number}")).await;
                    }
                })
            })
            .collect();
        let busy = run().await;
        others.iter().for_each(tokio::task::JoinHandle::abort);
        println!("a prompt of 1 KB through the lanes:  p50 {:?}  p99 {:?}", quiet[0], quiet[1]);
        println!(
            "beside counts of 512 KB:             p50 {:?}  p99 {:?}  ({:.2}x)",
            busy[0],
            busy[1],
            busy[1].as_secs_f64() / quiet[1].as_secs_f64()
        );
    });
}
