//! Parts that are no text: images, sound, video (vLLM 0.32.0 `renderers/chat_utils.py`).

use serde_json::{Map, Value};

use crate::tokens::images::ImageRef;

/// How contents reach the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// As lists of parts (vLLM's "openai" content format).
    Lists,
    /// As texts joined with a line break ("string"). What stands for an image that its own text does
    /// not show is put before it, each on a line.
    Text {
        /// What the engine writes for an image ([`crate::tokens::images::Vision::written`]); nothing where it
        /// writes nothing, or no images are taken.
        image: Option<&'static str>,
    },
}

/// Kinds of parts that are something else, the key by which one without a kind is known, and the
/// kind that the template sees.
pub const MEDIA: &[(&str, &str)] = &[
    ("image_url", "image"),
    ("input_image", "image"),
    ("image_pil", "image"),
    ("image_embeds", "image"),
    ("audio_url", "audio"),
    ("input_audio", "audio"),
    ("audio_embeds", "audio"),
    ("video_url", "video"),
    ("video_embeds", "video"),
    ("prompt_embeds", "text"),
];

/// The image of a part: its `image_url`, a text or an object with a `url`. (`image_pil` cannot come
/// over HTTP.)
pub fn image(part: &Map<String, Value>) -> ImageRef<'_> {
    let given = part.get("image_url");
    let url = given.and_then(|given| given.as_str().or_else(|| given.get("url")?.as_str()));
    url.filter(|url| !url.is_empty()).map_or(ImageRef::Unseen, ImageRef::Url)
}

/// A message's text with what stands for each of its images: where the text itself shows some (the
/// client wrote them), only the others are put before it (`_get_full_multimodal_text_prompt`).
pub fn with_images(text: String, image: &str, images: usize) -> Result<String, &'static str> {
    let shown = text.matches(image).count();
    let missing = images.checked_sub(shown).ok_or("a text shows more images than its message has")?;
    let mut lines = vec![image; missing];
    if !text.is_empty() {
        lines.push(&text);
    }
    Ok(lines.join("\n"))
}
