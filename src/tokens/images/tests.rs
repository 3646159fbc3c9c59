//! Against what transformers' and vLLM's own code says: `tests/data/tokens/images.jsonl`, made by
//! `tests/real/images/record.py`.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::data_url::Bytes;
use super::header::{self, Turned};
use super::*;

fn recorded(kind: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokens/images.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter(|row| row["kind"] == kind).collect()
}

fn vision(row: &Value) -> Vision {
    let bytes = |key: &str| row[key].to_string().into_bytes();
    Vision::read(&bytes("config"), Some(&bytes("preprocessor")), Some(&bytes("processor"))).unwrap().unwrap()
}

fn size_of(pair: &Value) -> Size {
    let side = |at: usize| u32::try_from(pair[at].as_u64().unwrap()).unwrap();
    Size { width: side(0), height: side(1) }
}

fn read(config: Value, preprocessor: Option<Value>) -> Result<Option<Vision>, VisionError> {
    let preprocessor = preprocessor.map(|value| value.to_string());
    Vision::read(config.to_string().as_bytes(), preprocessor.as_ref().map(String::as_bytes), None)
}

fn qwen() -> Vision {
    let preprocessor = json!({"min_pixels": 3136, "max_pixels": 12_845_056});
    read(json!({"model_type": "qwen2_5_vl"}), Some(preprocessor)).unwrap().unwrap()
}

/// A file of the recorded ones, as a data URL.
fn url(name: &str) -> String {
    let files = recorded("file");
    let file = files.iter().find(|file| file["name"] == name).unwrap();
    format!("data:image/x;base64,{}", file["base64"].as_str().unwrap())
}

#[test]
fn every_family_counts_every_size_as_the_engine_does() {
    let models = recorded("model");
    let families: std::collections::BTreeSet<&str> =
        models.iter().map(|row| row["family"].as_str().unwrap()).collect();
    assert_eq!(families.len(), 7, "{families:?}");
    for row in models {
        let vision = vision(&row);
        assert_eq!(vision.family().label(), row["family"].as_str().unwrap());
        assert_eq!(vision.most(), row["most"].as_u64().unwrap(), "{}", row["model"]);
        let sizes = row["sizes"].as_array().unwrap();
        assert!(sizes.len() >= 250);
        for one in sizes {
            let tokens = vision.tokens_of(size_of(one));
            assert_eq!(tokens, one[2].as_u64(), "{} {one}", row["model"]);
            assert!(tokens.is_none_or(|tokens| tokens <= vision.most()));
        }
    }
}

#[test]
fn a_prompt_has_its_images_in_place_of_their_marks() {
    let models: BTreeMap<String, Value> =
        recorded("model").into_iter().map(|row| (row["model"].to_string(), row)).collect();
    let prompts = recorded("prompt");
    assert!(prompts.len() >= 40);
    let mut refused = 0;
    for row in prompts {
        let model = &models[&row["model"].to_string()];
        let vision = vision(model);
        let ids: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
        let cost = |pair: &Value| {
            let size = size_of(pair);
            ImageCost { tokens: vision.tokens_of(size).unwrap(), certain: true, size: Some(size) }
        };
        let images: Vec<ImageCost> = row["images"].as_array().unwrap().iter().map(cost).collect();
        let id_of = |token: &str| u32::try_from(model["vocabulary"][token].as_u64()?).ok();
        let total = vision.total(&ids, &images, id_of);
        let Some(tokens) = row["total"].as_u64() else {
            refused += 1;
            continue;
        };
        assert_eq!(total, WithImages { tokens, certain: true }, "{} {}", row["model"], row["text"]);
        let more = [&images[..], &images[..1], &images[..1]].concat();
        assert!(!vision.total(&ids, &more, id_of).certain, "an image without a place");
        assert!(!vision.total(&ids, &images, |_| None).certain, "a vocabulary without the mark");
    }
    // Gemma 3 with a line break behind an image.
    assert!(refused <= 5, "{refused}");
}

#[test]
fn every_file_has_the_size_that_the_engine_sees() {
    let files = recorded("file");
    assert!(files.len() >= 100);
    let mut unsure = Vec::new();
    for file in &files {
        let bytes = Bytes::of_base64(file["base64"].as_str().unwrap()).unwrap();
        let found = header::read(bytes);
        let Some(pair) = file["size"].as_array() else { continue };
        let engine = size_of(&Value::from(pair.clone()));
        let name = file["name"].as_str().unwrap();
        if name == "a bitmap" {
            assert_eq!(found, None);
            continue;
        }
        let found = found.unwrap_or_else(|| panic!("{name} was not read"));
        match found.turned {
            Turned::No => assert_eq!(found.size, engine, "{name}"),
            Turned::Yes => assert_eq!(found.size.turned(), engine, "{name}"),
            Turned::Unsure => {
                assert!(found.size == engine || found.size.turned() == engine, "{name}");
                unsure.push(name);
            }
        }
    }
    assert_eq!(
        unsure,
        [
            "jpeg turned, of type long",
            "jpeg turned, two of it",
            "jpeg turned, of type byte",
            "jpeg with broken exif",
            "jpeg with no exif in exif",
            "jpeg exif in two parts",
            "png turned by compressed xmp",
            "png turned by a raw profile",
        ]
    );
}

#[test]
fn an_image_that_is_not_there_costs_the_most_there_is() {
    let vision = qwen();
    let most = ImageCost { tokens: 16_384, certain: false, size: None };
    for image in [
        ImageRef::Url("https://example.com/cat.png"),
        ImageRef::Url("file:///cat.png"),
        ImageRef::Url("data:image/png;base64,QUJD"),
        ImageRef::Url("data:image/png;base64,%%%%"),
        ImageRef::Url(""),
        ImageRef::Unseen,
        ImageRef::Url(&url("a bitmap")),
    ] {
        assert_eq!(vision.cost(image), most, "{image:?}");
    }
    assert_eq!(vision.cost(ImageRef::Url(&url("png over the limit"))).tokens, 16_384);
    let seen = vision.cost(ImageRef::Url(&url("jpeg 300x20")));
    assert_eq!(seen, ImageCost { tokens: 11, certain: true, size: Some(Size { width: 300, height: 20 }) });
}

#[test]
fn where_all_images_cost_the_same_any_image_is_certain() {
    let fixed = [
        (json!({"model_type": "llava"}), 576),
        (json!({"model_type": "gemma3", "vision_config": {}}), 260),
        (json!({"model_type": "mllama", "vision_config": {}}), 1),
    ];
    for (config, tokens) in fixed {
        let vision = read(config, None).unwrap().unwrap();
        let cost = vision.cost(ImageRef::Url("https://example.com/cat.png"));
        assert_eq!(cost, ImageCost { tokens, certain: true, size: None });
    }
}

#[test]
fn an_image_that_may_be_turned_costs_the_dearer_side_up() {
    let pixtral = read(json!({"model_type": "llava", "vision_config": {"model_type": "pixtral"}}), None)
        .unwrap()
        .unwrap();
    let broken = url("jpeg with broken exif");
    // 30 × 20 pixels: two rows of two patches, either way.
    assert!(pixtral.cost(ImageRef::Url(&broken)).certain);
    let config = json!({"model_type": "llava", "vision_config": {"model_type": "pixtral", "patch_size": 10}});
    let cost = read(config, None).unwrap().unwrap().cost(ImageRef::Url(&broken));
    assert_eq!((cost.tokens, cost.certain), (3 * (2 + 1), false));
    let turned = pixtral.cost(ImageRef::Url(&url("jpeg turned 6")));
    assert_eq!(turned.size, Some(Size { width: 20, height: 30 }));
}

#[test]
fn other_models_are_unknown_or_see_nothing() {
    assert_eq!(read(json!({"model_type": "llama"}), None), Ok(None));
    assert_eq!(read(json!({}), None), Ok(None));
    assert_eq!(read(json!({"model_type": "gemma3_text"}), None), Ok(None));
    for config in [
        json!({"model_type": "llama4", "vision_config": {}}),
        json!({"model_type": "qwen2_audio", "audio_config": {}}),
        json!({"vision_config": {"image_size": 336}}),
    ] {
        assert!(matches!(read(config, None), Err(VisionError::UnknownFamily { .. })));
    }
    let needs = |model_type: &str| read(json!({"model_type": model_type}), None);
    for model_type in ["qwen2_vl", "mistral3"] {
        assert_eq!(needs(model_type), Err(VisionError::Missing { file: "preprocessor_config.json" }));
    }
}

#[test]
fn an_image_processor_within_the_processors_file_wins() {
    let read = |processor: &[u8]| {
        let alone = br#"{"size": {"shortest_edge": 784, "longest_edge": 784000}}"#;
        Vision::read(br#"{"model_type": "qwen3_vl"}"#, Some(alone), Some(processor)).unwrap().unwrap().most()
    };
    assert_eq!(read(br#"{"processor_class": "Qwen3VLProcessor"}"#), 1000);
    let nested =
        br#"{"image_processor": {"patch_size": 16, "max_pixels": 5120000, "size": {"shortest_edge": 1}}}"#;
    assert_eq!(read(nested), 5000);
}

#[test]
fn a_models_directory_is_read() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Vision::load(dir.path()), Ok(None));
    let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
    write("config.json", r#"{"model_type": "qwen2_vl"}"#);
    assert_eq!(Vision::load(dir.path()), Err(VisionError::Missing { file: "preprocessor_config.json" }));
    write("preprocessor_config.json", r#"{"max_pixels": 784000}"#);
    assert_eq!(Vision::load(dir.path()).unwrap().unwrap().most(), 1000);
    write("processor_config.json", "not JSON");
    assert!(matches!(
        Vision::load(dir.path()),
        Err(VisionError::Invalid { file: "processor_config.json", .. })
    ));
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::create_dir(dir.path().join("sub/config.json")).unwrap();
    assert!(matches!(Vision::load(&dir.path().join("sub")), Err(VisionError::Read { .. })));
}

#[test]
fn unusable_numbers_are_an_error() {
    let qwen = |preprocessor: Value| read(json!({"model_type": "qwen2_vl"}), Some(preprocessor));
    for wrong in [
        json!({"patch_size": 0}),
        json!({"patch_size": -14}),
        json!({"patch_size": "14"}),
        json!({"patch_size": 1e300}),
        json!({"max_pixels": 0.5}),
        json!({"size": {"height": 5, "width": 5}}),
        json!({"do_resize": false}),
    ] {
        assert!(matches!(qwen(wrong.clone()), Err(VisionError::Invalid { .. })), "{wrong}");
    }
    for wrong in [
        json!({"model_type": "llava", "vision_config": {"model_type": "other"}}),
        json!({"model_type": "llava", "vision_config": {"image_size": 14, "patch_size": 28}}),
        json!({"model_type": "llava", "vision_feature_select_strategy": "odd"}),
        json!({"model_type": "llava_next", "image_grid_pinpoints": [[336]]}),
        json!({"model_type": "llava_next", "image_grid_pinpoints": []}),
        json!({"model_type": "llava", "vision_config":
            {"model_type": "pixtral", "image_size": 2_000_000, "patch_size": 1}}),
    ] {
        assert!(matches!(read(wrong.clone(), None), Err(VisionError::Invalid { .. })), "{wrong}");
    }
    assert!(Vision::read(b"[]", None, None).is_err());
    assert!(Vision::read(b"{}", Some(b"{"), None).is_err());
}

#[test]
fn long_headers_end_in_time() {
    use base64::prelude::{BASE64_STANDARD, Engine};
    let mut longest = std::time::Duration::ZERO;
    for (head, body) in [
        (&b"\xff\xd8\xff"[..], &b"\xff\xe4\x00\x02"[..]),
        (b"\xff\xd8\xff", b"\xff\xd0"),
        (b"\xff\xd8\xff", b"x"),
        (b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00tEXt\x00\x00\x00\x00"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00", b"!\xf9\x00\x01\x00"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00", b"!\xfe\x01x\x01x"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\xff\0\0\0\x01\0\0\x01\0\0", b"ABCD\x00\x00\x00\x00"),
    ] {
        let bytes: Vec<u8> = head.iter().chain(body.iter().cycle()).take(6 << 20).copied().collect();
        let url = format!("data:;base64,{}", BASE64_STANDARD.encode(bytes));
        let began = tokio::time::Instant::now();
        assert!(!qwen().cost(ImageRef::Url(&url)).certain || head.starts_with(b"RIFF"));
        longest = longest.max(began.elapsed());
    }
    // Unoptimised, on a busy machine: 100 times what it takes.
    assert!(longest < std::time::Duration::from_secs(2), "{longest:?}");
}

fn sides() -> impl Strategy<Value = (u32, u32)> {
    let side = || prop_oneof![1_u32..40, 1_u32..3000, 1_u32..200_000];
    (side(), side())
}

proptest! {
    #[test]
    fn no_image_costs_more_than_the_most(
        (width, height) in sides(), patch in 1_u64..40, edge in 1_u64..3000,
        fewest in 1_u64..300_000, most in 1_u64..3_000_000,
    ) {
        let vision_config = json!({"model_type": "pixtral", "image_size": edge, "patch_size": patch});
        let clip = json!({"image_size": edge + patch, "patch_size": patch});
        let size = json!({"shortest_edge": fewest, "longest_edge": most, });
        let pinpoints = json!([[edge, edge * 2], [edge * 3, edge], [most, 7]]);
        for (config, preprocessor) in [
            (json!({"model_type": "llava", "vision_config": vision_config}), None),
            (json!({"model_type": "mistral3", "vision_config": vision_config}),
                Some(json!({"size": {"longest_edge": edge}}))),
            (json!({"model_type": "llava_next", "vision_config": clip, "image_grid_pinpoints": pinpoints}), None),
            (json!({"model_type": "qwen2_vl"}), Some(json!({"size": size, "patch_size": patch}))),
        ] {
            let vision = read(config, preprocessor).unwrap().unwrap();
            let tokens = vision.tokens_of(Size { width, height });
            prop_assert!(tokens.is_none_or(|tokens| tokens <= vision.most()), "{:?} {:?}", vision, tokens);
        }
    }

    #[test]
    fn any_bytes_are_measured_without_panic(
        start in 0_usize..7, bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        use base64::prelude::{BASE64_STANDARD, Engine};
        let starts: [&[u8]; 7] = [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1\x00\x40Exif\0\0II*\0",
            b"GIF89a", b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\xff", b"\xff\xd8\xff\xe1\x00\x50http://ns.adobe.com/xap/1.0/\0"];
        let url = format!("data:;base64,{}", BASE64_STANDARD.encode([starts[start], &bytes].concat()));
        let cost = qwen().cost(ImageRef::Url(&url));
        prop_assert!((1..=16_384).contains(&cost.tokens));
    }

    #[test]
    fn changed_files_are_measured_without_panic(pick in any::<u64>(), at in any::<u64>(), to in any::<u8>(), cut in any::<u64>()) {
        use base64::prelude::{BASE64_STANDARD, Engine};
        thread_local!(static FILES: Vec<Value> = recorded("file"));
        let mut bytes = FILES.with(|files| {
            let file = &files[usize::try_from(pick).unwrap() % files.len()];
            BASE64_STANDARD.decode(file["base64"].as_str().unwrap()).unwrap()
        });
        // Headers are at the start.
        let len = bytes.len().clamp(1, 300);
        if let Some(byte) = bytes.get_mut(usize::try_from(at).unwrap() % len) {
            *byte = to;
        }
        bytes.truncate(bytes.len().saturating_sub(usize::try_from(cut).unwrap() % len));
        let text = BASE64_STANDARD.encode(bytes);
        let _ = header::read(Bytes::of_base64(&text).unwrap());
    }
}
