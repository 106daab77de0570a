//! Grammars as llama.cpp and XGrammar write them (GBNF: `root ::= "a" [0-9]+ | item`), put into Lark's syntax.
//!
//! A rule ends where the next one's name and `::=` begin, so that line breaks mean nothing. Characters are code points.
//!
//! Lark's terminals are read by a greedy lexer, which GBNF does not know: `[a-z]+ "b"` would never end. So a grammar that
//! does not recurse becomes one terminal, which nothing follows; of any other each single character is a terminal.

use std::collections::HashMap;

use crate::error::{failure, Code, Outcome};

const MAX_DEPTH: usize = 25; // of brackets: Lark's own bound is 30
const MAX_COUNT: u32 = 100_000;
const ANY: &str = "/(?s:.)/ ";

/// Whether this is GBNF and not Lark: its first rule is written with `::=`.
pub fn is_gbnf(text: &str) -> bool {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#') && !l.starts_with("//"));
    let begin = lines.take(2).collect::<Vec<_>>().join(" ");
    let behind = begin.trim_start_matches(is_name_char);
    behind.len() < begin.len() && behind.trim_start().starts_with("::=")
}

/// `gbnf`: a text that is_gbnf. Its rule `root` is the whole text.
pub fn to_lark(gbnf: &str) -> Outcome<String> {
    let whole = Translator::new(gbnf, false).run()?;
    let recurses = recurses(&whole.uses);
    let done = if recurses { Translator::new(gbnf, true).run()? } else { whole };
    Ok(done.out + "\n")
}

/// Whether any rule that is used leads back to itself: those that lead nowhere are taken away until none is left.
fn recurses(uses: &[Vec<usize>]) -> bool {
    let mut users = vec![vec![]; uses.len()];
    let mut left: Vec<usize> = uses.iter().map(Vec::len).collect();
    for (rule, used) in uses.iter().enumerate() {
        used.iter().for_each(|&other| users[other].push(rule));
    }
    let mut todo: Vec<usize> = (0..uses.len()).filter(|&rule| left[rule] == 0).collect();
    let mut ended = 0;
    while let Some(rule) = todo.pop() {
        ended += 1;
        for &user in &users[rule] {
            left[user] -= 1;
            if left[user] == 0 {
                todo.push(user);
            }
        }
    }
    ended < uses.len()
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// In a regex.
fn literal(c: u32) -> String {
    match char::from_u32(c) {
        Some(c) if c.is_ascii_alphanumeric() => c.to_string(),
        _ => format!("\\x{{{c:X}}}"),
    }
}

#[derive(Default)]
struct Translator {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    apart: bool, // each character is a terminal
    out: String,
    ids: HashMap<String, usize>,
    rule: usize,           // that is being read
    uses: Vec<Vec<usize>>, // by rule: the rules in it
    defined: Vec<bool>,
}

impl Translator {
    fn new(gbnf: &str, apart: bool) -> Translator {
        Translator { chars: gbnf.chars().collect(), apart, ..Translator::default() }
    }

    fn run(mut self) -> Outcome<Translator> {
        let root = self.id_of("root");
        self.out = format!("start: {}", self.spelled("root", root));
        self.skip_blanks();
        while self.at < self.chars.len() {
            self.rule()?;
        }
        match self.ids.iter().find(|(_, &id)| !self.defined[id]) {
            Some((name, _)) => failure(Code::Invalid, format!("the EBNF grammar has no rule '{name}'")),
            None => Ok(self),
        }
    }

    fn fault<T>(&self, what: &str) -> Outcome<T> {
        let line = 1 + self.chars.iter().take(self.at).filter(|&&c| c == '\n').count();
        failure(Code::Invalid, format!("line {line} of the EBNF grammar: {what}"))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += found as usize;
        found
    }

    fn skip_blanks(&mut self) {
        let mut comment = false;
        while let Some(c) = self.peek() {
            comment = (comment || c == '#') && c != '\n';
            if !comment && !c.is_whitespace() {
                return;
            }
            self.at += 1;
        }
    }

    fn id_of(&mut self, name: &str) -> usize {
        let next = self.ids.len();
        let id = *self.ids.entry(name.to_string()).or_insert(next);
        if id == next {
            self.uses.push(vec![]);
            self.defined.push(false);
        }
        id
    }

    /// As errors show it; the number tells "a-b" and "a_b" apart.
    fn spelled(&self, name: &str, id: usize) -> String {
        let word = name.replace('-', "_");
        if self.apart { format!("r{id}_{} ", word.to_lowercase()) } else { format!("R{id}_{} ", word.to_uppercase()) }
    }

    fn name(&mut self) -> String {
        let first = self.at;
        while self.peek().is_some_and(is_name_char) {
            self.at += 1;
        }
        let name = self.chars[first..self.at].iter().collect();
        self.skip_blanks();
        name
    }

    fn at_define(&self) -> bool {
        self.chars.get(self.at..).is_some_and(|rest| rest.starts_with(&[':', ':', '=']))
    }

    fn rule(&mut self) -> Outcome<()> {
        let name = self.name();
        if name.is_empty() || !self.at_define() {
            return self.fault("a rule is expected here: name ::= ...");
        }
        self.at += 3;
        self.rule = self.id_of(&name);
        if std::mem::replace(&mut self.defined[self.rule], true) {
            return self.fault(&format!("a second rule '{name}'"));
        }
        self.out += &format!("\n{}: ", self.spelled(&name, self.rule));
        self.choice()
    }

    fn choice(&mut self) -> Outcome<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fault(&format!("more than {MAX_DEPTH} brackets in each other"));
        }
        self.sequence()?;
        while self.take('|') {
            self.out += "| ";
            self.sequence()?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn sequence(&mut self) -> Outcome<()> {
        let begin = self.out.len();
        self.skip_blanks();
        while self.atom()? {
            self.skip_blanks();
            self.repetition()?;
            self.skip_blanks();
        }
        if self.out.len() == begin {
            self.out += "\"\" ";
        }
        Ok(())
    }

    /// False where a sequence ends.
    fn atom(&mut self) -> Outcome<bool> {
        match self.peek() {
            None | Some('|' | ')') => return Ok(false),
            Some('"') => self.text()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.at += 1;
                self.out += ANY;
            }
            Some('(') => {
                self.at += 1;
                self.out += "( ";
                self.choice()?;
                self.out += ") ";
                if !self.take(')') {
                    return self.fault("a ')' is missing");
                }
            }
            Some(c) if is_name_char(c) => {
                let first = self.at;
                let name = self.name();
                if self.at_define() {
                    self.at = first;
                    return Ok(false);
                }
                let id = self.id_of(&name);
                self.uses[self.rule].push(id);
                self.out += &self.spelled(&name, id);
            }
            Some(c) => return self.fault(&format!("'{c}' is not expected here")),
        }
        Ok(true)
    }

    /// What may stand behind an atom: *, +, ?, {m}, {m,} or {m,n}.
    fn repetition(&mut self) -> Outcome<()> {
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => self.out += &format!("{c} "),
            Some('{') => {
                let rest = self.chars[self.at + 1..].iter();
                let text: String = rest.take_while(|&&c| c != '}').collect();
                self.at += text.chars().count() + 1;
                let (least, most) = text.split_once(',').unwrap_or((&text, &text));
                let count = |text: &str| text.trim().parse::<u32>().ok().filter(|&n| n <= MAX_COUNT);
                match (count(least), count(most)) {
                    _ if self.peek() != Some('}') => return self.fault("a '}' is missing"),
                    (Some(m), Some(n)) if m <= n && n > 0 => self.out += &format!("{{{m},{n}}} "),
                    (Some(m), None) if most.trim().is_empty() => self.out += &format!("{{{m},}} "),
                    _ => return self.fault("a repetition is {m}, {m,} or {m,n}, n from 1 to 100000"),
                }
            }
            _ => return Ok(()),
        }
        self.at += 1;
        self.skip_blanks();
        match self.peek() {
            Some('*' | '+' | '?' | '{') => self.fault("a repetition of a repetition needs brackets"),
            _ => Ok(()),
        }
    }

    fn text(&mut self) -> Outcome<()> {
        self.at += 1;
        let mut letters = vec![];
        while !self.take('"') {
            letters.push(literal(self.character()? as u32));
        }
        if letters.is_empty() {
            self.out += "\"\" ";
        } else {
            self.out += &format!("( /{}/ ) ", letters.join(if self.apart { "/ /" } else { "" }));
        }
        Ok(())
    }

    fn class(&mut self) -> Outcome<()> {
        self.at += 1;
        let mut set = String::from(if self.take('^') { "^" } else { "" });
        while !self.take(']') {
            let first = self.character()? as u32;
            let range = self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|&c| c != ']');
            self.at += range as usize;
            let last = if range { self.character()? as u32 } else { first };
            if last < first {
                return self.fault("a range of characters ends before it begins");
            }
            set += &format!("{}-{}", literal(first), literal(last));
        }
        match set.as_str() {
            "" => return self.fault("a class without a character"),
            "^" => self.out += ANY,
            _ => self.out += &format!("/[{set}]/ "),
        }
        Ok(())
    }

    fn character(&mut self) -> Outcome<char> {
        let Some(c) = self.peek() else { return self.fault("a quote or a ']' is missing") };
        self.at += 1;
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.peek();
        let digits = match escape {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        let hex: String = self.chars[self.at..].iter().skip(1).take(digits).collect();
        self.at += 1 + digits;
        let found = match escape {
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some(c) if c.is_ascii_punctuation() => Some(c),
            _ => u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits).and_then(char::from_u32),
        };
        found.map_or_else(|| self.fault("what follows the backslash is no character"), Ok)
    }
}
