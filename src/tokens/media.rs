//! How much a conversation shows and plays: pixels and seconds, from the headers of what it carries itself.
//!
//! For the request's shape, whatever the model makes of it. Nothing is decoded and nothing is fetched. Where one image or
//! one sound of several is not known the sum is not known either: images in other formats than
//! [`super::images`] reads, sound in others than [`super::sound`] reads, and all that only the engine can fetch.

use serde_json::{Map, Value};

use super::conversation::media::image;
use super::sound;
use crate::request::{Prompt, Reading};

/// Notes the pixels and the seconds of sound of a request that has images or sound. Takes at most some
/// milliseconds for each image.
pub fn note(reading: &mut Reading) {
    let Prompt::Chat(chat) = &reading.prompt else { return };
    let parts = || {
        let contents = chat.messages.iter().filter_map(|message| message.get("content")?.as_array());
        contents.flatten().filter_map(Value::as_object)
    };
    let is = |part: &Map<String, Value>, kinds: &[&str]| match part.get("type").and_then(Value::as_str) {
        Some(kind) => kinds.contains(&kind),
        None => kinds.iter().any(|kind| part.contains_key(*kind)),
    };
    let mut images = parts().filter(|part| is(part, &IMAGES)).peekable();
    if images.peek().is_some() {
        reading.shape.image_pixels =
            images.map(pixels).try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?)));
    }
    let mut sounds = parts().filter(|part| is(part, &SOUNDS)).peekable();
    if sounds.peek().is_some() {
        reading.shape.audio_seconds = sounds.map(seconds).try_fold(0.0, |sum, one| Some(sum + one?));
    }
}

const IMAGES: [&str; 4] = ["image_url", "input_image", "image_pil", "image_embeds"];
const SOUNDS: [&str; 3] = ["input_audio", "audio_url", "audio_embeds"];

fn pixels(part: &Map<String, Value>) -> Option<u64> {
    Some(image(part).size()?.pixels())
}

/// The seconds of a part: `input_audio` has base64 data, `audio_url` a URL that may hold it.
fn seconds(part: &Map<String, Value>) -> Option<f64> {
    if let Some(given) = part.get("input_audio") {
        return sound::seconds_of_base64(given.get("data")?.as_str()?);
    }
    let given = part.get("audio_url")?;
    sound::seconds_of_url(given.as_str().or_else(|| given.get("url")?.as_str())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Api, dialect};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    fn png(width: u32, height: u32) -> String {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        bytes.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
        bytes.extend([8, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(b"\0\0\0\0IDAT\0\0\0\0\0\0\0\0IEND\0\0\0\0");
        format!("data:image/png;base64,{}", STANDARD.encode(bytes))
    }

    fn noted(parts: Value) -> (Option<u64>, Option<f64>) {
        let body = serde_json::json!({"messages": [{"role": "user", "content": parts}]}).to_string();
        let mut reading = dialect::read(Api::Chat, body.as_bytes()).unwrap();
        note(&mut reading);
        (reading.shape.image_pixels, reading.shape.audio_seconds)
    }

    #[test]
    fn pixels_and_seconds_add_up_where_all_are_known() {
        let image = |url: &str| serde_json::json!({"type": "image_url", "image_url": {"url": url}});
        let two = serde_json::json!([image(&png(30, 20)), {"type": "text", "text": "x"}, image(&png(5, 1))]);
        assert_eq!(noted(two), (Some(605), None));
        let fetched = serde_json::json!([image(&png(30, 20)), image("http://example.com/x.png")]);
        assert_eq!(noted(fetched), (None, None), "one is not known");
        let wav = STANDARD.encode(sound::wav(16_000, 2, 24_000));
        let sound = serde_json::json!([{"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
            {"audio_url": {"url": format!("data:audio/wav;base64,{wav}")}}]);
        assert_eq!(noted(sound), (None, Some(3.0)));
        assert_eq!(noted(serde_json::json!("text")), (None, None));
        assert_eq!(noted(serde_json::json!([{"type": "input_audio", "input_audio": 5}])), (None, None));
    }
}
