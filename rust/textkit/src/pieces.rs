//! What each token contributes to text, as bytes, worked out once from the file's decoder: decoding is then concatenation.

use serde_json::Value as Json;
use tokenizers::{Decoder, DecoderWrapper};

use crate::error::{failure, Code, Outcome};

pub struct Pieces {
    pub blob: Vec<u8>,
    pub start: Vec<u32>,
    pub special: Vec<u8>,
    /// Dropped from a text's begin, at most strip_count times: one ASCII character.
    pub strip: String,
    pub strip_count: i32,
    /// Metaspace: the first token of a text loses every such character.
    pub first_drops: Option<char>,
    pub join: String,
}

enum Step {
    ByteLevel,
    ByteFallback,
    PerToken(DecoderWrapper),
}

#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    fused: bool,
    strip: String,
    strip_count: i32,
    first_drops: Option<char>,
}

impl Pieces {
    /// `tokens[id]` is what the decoder is given for that id.
    pub fn from_decoder(decoder: &Json, tokens: &[Option<String>], special: Vec<u8>) -> Outcome<Pieces> {
        let mut plan = Plan::default();
        let mut join = String::new();
        if decoder.is_null() {
            join.push(' '); // the library joins by a space where a file has no decoder
        } else {
            plan.add(decoder, "decoder")?;
        }
        let mut pieces = Pieces::empty(special);
        for token in tokens {
            match token {
                Some(token) => pieces.push(&plan.bytes(token)?),
                None => pieces.push(&[]),
            }
        }
        pieces.strip = plan.strip;
        pieces.strip_count = plan.strip_count;
        pieces.first_drops = plan.first_drops;
        pieces.join = join;
        Ok(pieces)
    }

    pub fn empty(special: Vec<u8>) -> Pieces {
        Pieces {
            blob: Vec::new(),
            start: vec![0],
            special,
            strip: String::new(),
            strip_count: 0,
            first_drops: None,
            join: String::new(),
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.blob.extend_from_slice(bytes);
        self.start.push(self.blob.len() as u32);
    }

    pub fn len(&self) -> usize {
        self.start.len() - 1
    }
}

impl Plan {
    fn add(&mut self, json: &Json, path: &str) -> Outcome<()> {
        let kind = json.get("type").and_then(Json::as_str).unwrap_or("(no type)");
        let unsupported = |why: &str| failure(Code::Unsupported, format!("{path}: component '{kind}' {why}"));
        if kind == "Sequence" {
            for (i, child) in json["decoders"].as_array().into_iter().flatten().enumerate() {
                self.add(child, &format!("{path}.decoders[{i}]"))?;
            }
            return Ok(());
        }
        if self.fused && kind != "Strip" && kind != "Fuse" {
            return unsupported("after Fuse cannot be streamed");
        }
        match kind {
            "Fuse" => self.fused = true,
            "ByteLevel" => self.steps.push(Step::ByteLevel),
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Strip" if self.fused => {
                let content = json["content"].as_str().unwrap_or("");
                if json["stop"].as_u64() != Some(0) || content.len() != 1 || self.strip_count > 0 {
                    return unsupported("strips in a way that cannot be streamed");
                }
                self.strip = content.to_string();
                self.strip_count = json["start"].as_u64().unwrap_or(0).min(1 << 20) as i32;
            }
            "Metaspace" => {
                let never = json["prepend_scheme"] == "never"
                    || (json["prepend_scheme"].is_null() && json["add_prefix_space"] == false);
                if !never {
                    self.first_drops = json["replacement"].as_str().and_then(|s| s.chars().next());
                }
                self.steps.push(Step::PerToken(parse(json, path)?));
            }
            "Replace" | "Strip" => self.steps.push(Step::PerToken(parse(json, path)?)),
            _ => return unsupported("belongs to no generating model that this build knows"),
        }
        Ok(())
    }

    fn bytes(&self, token: &str) -> Outcome<Vec<u8>> {
        let mut text = token.to_string();
        for step in &self.steps {
            match step {
                Step::ByteLevel => return Ok(byte_level(&text)),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return Ok(vec![byte]);
                    }
                }
                Step::PerToken(decoder) => {
                    // As the second of two tokens: what is special about a first one is a rule for the text's begin.
                    let both = decoder.decode_chain(vec![String::new(), text]);
                    text = match both.map(|mut parts| parts.pop()) {
                        Ok(Some(text)) => text,
                        _ => return failure(Code::DataLoss, format!("decoder: fails on token '{token}'")),
                    };
                }
            }
        }
        Ok(text.into_bytes())
    }
}

fn parse(json: &Json, path: &str) -> Outcome<DecoderWrapper> {
    match serde_json::from_value(json.clone()) {
        Ok(decoder) => Ok(decoder),
        Err(e) => failure(Code::Unsupported, format!("{path}: {e}")),
    }
}

/// `<0x0A>` stands for one byte.
pub fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// GPT-2's printable alphabet back to bytes; a token with any other character stands for its own UTF-8.
pub fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(alphabet_byte).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

fn alphabet_byte(c: char) -> Option<u8> {
    match c as u32 {
        v @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(v as u8),
        v @ 0x100..=0x120 => Some((v - 0x100) as u8),
        v @ 0x121..=0x142 => Some((v - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}
