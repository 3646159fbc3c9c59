//! The texts that are counted.

use std::fmt::Write as _;
use std::path::PathBuf;

/// Real text, each byte of it counted once: documents and source of the crates that cargo fetched.
pub struct Corpora {
    pub all: Vec<(&'static str, String)>,
}

impl Corpora {
    pub fn read() -> Self {
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

/// Documents of `bytes` each from the front of `text`, as many as make up some megabytes.
pub fn documents(text: &str, bytes: usize, total: usize, from: usize) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut at = text.floor_char_boundary(from.min(text.len()));
    while documents.len() * bytes < total && at + bytes < text.len() {
        let end = text.floor_char_boundary(at + bytes);
        documents.push(&text[at..end]);
        at = end;
    }
    documents
}
