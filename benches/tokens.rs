//! Counting: speed, the next turn of a conversation, hostile text, and memory, each as a ratio against the
//! reference (Hugging Face `tokenizers` 0.23) in the same run, on one processor.
//!
//! `cargo bench --bench tokens` takes the tokenizers of `$KVGATE_TOKENIZERS` (`tests/real/tokenizers.sh DIR`
//! fetches them), or without that the one of the simulated engine. `-- speed qwen3` runs one part for one of
//! them; parts: speed turn hostile memory, and `lanes`: how long a prompt of 1 KB waits beside some of 512 KB.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may stop, and prints")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use kvgate::request::{Api, dialect};
use kvgate::tokens::{Counter, Encoder, Extent, Settings, Tokenizer};

fn main() {
    kvgate::tokens::one_thread_a_count();
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let parts = ["speed", "turn", "hostile", "memory", "lanes"];
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
        println!("\n{name}: counted by {:?}", tokenizer.backend().path());
        if wanted("memory") {
            println!("  memory: {:.0} MB for its tables", (after - before) as f64 / 1e6);
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

/// Real text, each byte of it counted once: documents and source of the crates that cargo fetched.
struct Corpora {
    all: Vec<(&'static str, String)>,
}

impl Corpora {
    fn read() -> Self {
        let (mut english, mut code) = (String::new(), String::new());
        let cargo = std::env::var_os("CARGO_HOME")
            .map_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cargo"), PathBuf::from);
        // Crates of ordinary code, without tables.
        let plain = [
            "clap_builder-",
            "criterion-",
            "hyper-",
            "minijinja-",
            "proptest-",
            "tokenizers-0",
            "tokio-",
            "tower-",
            "tracing-",
        ];
        let mut todo: Vec<PathBuf> = vec![cargo.join("registry/src")];
        while let Some(dir) = todo.pop() {
            let mut entries: Vec<_> =
                std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
            entries.sort();
            for path in entries {
                let is = |end: &str| path.extension().is_some_and(|extension| extension == end);
                if path.is_dir() {
                    todo.push(path);
                } else if is("md") && english.len() < 6 << 20 {
                    english.push_str(&std::fs::read_to_string(path).unwrap_or_default());
                } else if is("rs")
                    && plain.iter().any(|name| {
                        path.components().any(|c| c.as_os_str().to_string_lossy().starts_with(name))
                    })
                {
                    code.push_str(&std::fs::read_to_string(path).unwrap_or_default());
                }
            }
        }
        let words: Vec<&str> = english.split_whitespace().collect();
        let mut random = fastrand::Rng::with_seed(1);
        let mut json = String::new();
        while json.len() < 5 << 20 {
            let word =
                |random: &mut fastrand::Rng| words[random.usize(0..words.len())].replace(['"', '\\'], "");
            let (a, b, c) = (word(&mut random), word(&mut random), word(&mut random));
            let (n, f) = (random.u32(0..100_000), random.f32());
            let _ = writeln!(
                json,
                "{{\"id\": {n}, \"name\": \"{a} {b}\", \"score\": {f}, \"tags\": [\"{c}\", null, true]}},"
            );
        }
        let mixed = mixed(5 << 20, &mut random);
        Self { all: vec![("english", english), ("code", code), ("mixed scripts", mixed), ("JSON", json)] }
    }
}

/// Sentences in eight scripts, their words as frequent as Zipf has it: one in eight is a new one.
fn mixed(bytes: usize, random: &mut fastrand::Rng) -> String {
    let alphabets: [(&str, &str, usize); 8] = [
        ("абвгдежзиклмнопрстуфхцчшщыьэюя", " ", 7),
        ("ابتثجحخدذرزسشصضطظعغفقكلمنهوي", " ", 5),
        ("कखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह", " ", 5),
        ("αβγδεζηθικλμνξοπρστυφχψω", " ", 6),
        ("가나다라마바사아자차카타파하각난달말발", " ", 4),
        ("的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生", "，", 9),
        ("あいうえおかきくけこさしすせそたちつてとなにぬねの", "、", 8),
        ("abcdefghijklmnoprstuvwéèüöß", " ", 6),
    ];
    let word = |alphabet: &(&str, &str, usize), random: &mut fastrand::Rng| -> String {
        let letters: Vec<char> = alphabet.0.chars().collect();
        (0..random.usize(2..=alphabet.2)).map(|_| letters[random.usize(0..letters.len())]).collect()
    };
    let known: Vec<Vec<String>> =
        alphabets.iter().map(|alphabet| (0..4000).map(|_| word(alphabet, random)).collect()).collect();
    let mut text = String::new();
    while text.len() < bytes {
        let script = random.usize(0..8);
        for _ in 0..random.usize(4..12) {
            if random.u8(0..8) == 0 {
                text.push_str(&word(&alphabets[script], random));
            } else {
                let rank = (4000_f64.powf(random.f64()) as usize).min(3999);
                text.push_str(&known[script][rank]);
            }
            text.push_str(alphabets[script].1);
        }
        text.push_str(["🙂 ", ".\n", "। ", "! "][random.usize(0..4)]);
    }
    text
}

/// The processor's time for it: other work on the machine does not count.
fn timed(mut work: impl FnMut()) -> Duration {
    let start = ThreadTime::now();
    work();
    start.elapsed()
}

/// Documents of `bytes` each from the front of `text`, as many as make up some megabytes.
fn documents(text: &str, bytes: usize, total: usize, from: usize) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut at = text.floor_char_boundary(from.min(text.len()));
    while documents.len() * bytes < total && at + bytes < text.len() {
        let end = text.floor_char_boundary(at + bytes);
        documents.push(&text[at..end]);
        at = end;
    }
    documents
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

/// A kind of hostile text and what makes so many bytes of it.
type Kind = (&'static str, fn(usize, &str) -> String);

const HOSTILE: [Kind; 26] = [
    ("one letter", |n, _| "a".repeat(n)),
    ("one capital", |n, _| "A".repeat(n)),
    ("spaces", |n, _| " ".repeat(n)),
    ("newlines", |n, _| "\n".repeat(n)),
    ("tabs", |n, _| "\t".repeat(n)),
    ("CR LF", |n, _| "\r\n".repeat(n / 2)),
    ("digits", |n, _| "7".repeat(n)),
    ("random digits", |n, _| letters(n, "0123456789")),
    ("random letters", |n, _| letters(n, "abcdefghijklmnopqrstuvwxyz")),
    ("random capitals", |n, _| letters(n, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
    ("two letters", |n, _| "ab".repeat(n / 2)),
    ("base64", |n, _| letters(n, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")),
    ("hex", |n, _| letters(n, "0123456789abcdef")),
    ("exclamation marks", |n, _| "!".repeat(n)),
    ("punctuation", |n, _| letters(n, "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~")),
    ("apostrophes", |n, _| "'s".repeat(n / 2)),
    ("combining marks", |n, _| format!("e{}", "\u{301}".repeat(n / 2))),
    ("ideographs", |n, _| "的".repeat(n / 3)),
    ("random ideographs", |n, _| {
        letters(n / 3, "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生")
    }),
    ("emoji", |n, _| "👩‍👩‍👧".repeat(n / 18)),
    ("zero width", |n, _| "\u{200b}".repeat(n / 3)),
    ("no-break spaces", |n, _| "\u{a0}".repeat(n / 2)),
    ("special tokens", |n, token| token.repeat(n / token.len().max(1))),
    ("parts of special tokens", |n, token| {
        token[..token.floor_char_boundary(token.len().saturating_sub(1))].repeat(n / token.len().max(2))
    }),
    ("random bytes", |n, _| {
        let mut random = fastrand::Rng::with_seed(9);
        let bytes: Vec<u8> = (0..n / 2).map(|_| random.u8(..)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }),
    ("spaces and letters", |n, _| "   a".repeat(n / 4)),
];

fn letters(n: usize, of: &str) -> String {
    let (of, mut random): (Vec<char>, _) = (of.chars().collect(), fastrand::Rng::with_seed(5));
    (0..n).map(|_| of[random.usize(0..of.len())]).collect()
}

fn hostile(tokenizer: &mut Tokenizer) {
    tokenizer.remember(0);
    let token = tokenizer.backend().added().first().cloned().unwrap_or_else(|| "<|x|>".to_owned());
    println!(
        "  {:24} {:>10} {:>10} {:>7} {:>12}",
        "hostile megabyte", "reference", "kvgate", "ratio", "8 MB : 1 MB"
    );
    let (mut worst, mut growth) = (0.0_f64, 0.0_f64);
    // What is loaded at first need.
    tokenizer.count(&"q".repeat(40_000), false, &Extent::WHOLE).unwrap();
    for (name, make) in HOSTILE {
        let (one, eight) = (make(1 << 20, &token), make(8 << 20, &token));
        // Once each: what was seen before is cheaper.
        let ours =
            |text: &str| timed(|| _ = black_box(tokenizer.count(text, false, &Extent::WHOLE).unwrap()));
        let reference = timed(|| drop(black_box(tokenizer.backend().reference_ids(&one, false).unwrap())));
        let (small, large) = (ours(&one), ours(&eight));
        let ratio = small.as_secs_f64() / reference.as_secs_f64();
        let grown = large.as_secs_f64() / small.as_secs_f64();
        let each = |time: Duration, text: &str| time.as_secs_f64() * 1e9 / text.len() as f64;
        println!(
            "  {name:24} {:5.0} ns/B {:5.0} ns/B {ratio:6.2}x {grown:11.1}x",
            each(reference, &one),
            each(small, &one)
        );
        (worst, growth) = (worst.max(ratio), growth.max(grown));
    }
    println!("  worst: {worst:.2}x of the reference, 8 MB {growth:.1}x of 1 MB");
}
