//! What policy may call.
//!
//! An allow-list, not a deny-list: a built-in that a later engine adds stays off until somebody adds it here. Left out on
//! purpose are functions that reach outside (`http.send`, `net.lookup_ip_addr`, `opa.runtime`), that make a decision
//! impossible to replay (`time.now_ns`, `rand.intn`, `uuid.rfc4122`), that only talk (`trace`, `print`), and that allocate
//! what they are asked for before any limit is looked at (`numbers.range`).
//!
//! The whole syntax tree is searched, rules that the decision never reaches included, and `with` targets and replacements
//! too, so that a test cannot smuggle one in either.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::assignment::{self, Assignments};
use crate::bundle::{BundleError, BundleFile, Place};

/// The deepest nesting of a syntax tree's JSON form that is walked.
const MAX_TREE_DEPTH: usize = 600;

/// Every built-in function that policy may call, sorted.
pub(crate) const ALLOWED_BUILTINS: [&str; 77] = [
    "__builtin_sets.intersection",
    "__builtin_sets.union",
    "abs",
    "array.concat",
    "array.reverse",
    "array.slice",
    "bits.and",
    "bits.negate",
    "bits.or",
    "bits.rsh",
    "bits.xor",
    "ceil",
    "concat",
    "contains",
    "count",
    "endswith",
    "floor",
    "format_int",
    "glob.match",
    "glob.quote_meta",
    "indexof",
    "indexof_n",
    "intersection",
    "is_array",
    "is_boolean",
    "is_null",
    "is_number",
    "is_object",
    "is_set",
    "is_string",
    "json.filter",
    "json.is_valid",
    "json.marshal",
    "json.remove",
    "json.unmarshal",
    "lower",
    "max",
    "min",
    "object.filter",
    "object.get",
    "object.keys",
    "object.remove",
    "object.subset",
    "object.union",
    "object.union_n",
    "product",
    "regex.find_all_string_submatch_n",
    "regex.find_n",
    "regex.is_valid",
    "regex.match",
    "regex.replace",
    "regex.split",
    "regex.template_match",
    "replace",
    "round",
    "sort",
    "split",
    "sprintf",
    "startswith",
    "strings.any_prefix_match",
    "strings.any_suffix_match",
    "strings.count",
    "strings.replace_n",
    "strings.reverse",
    "substring",
    "sum",
    "to_number",
    "trim",
    "trim_left",
    "trim_prefix",
    "trim_right",
    "trim_space",
    "trim_suffix",
    "type_name",
    "union",
    "units.parse_bytes",
    "upper",
];

/// What to say to somebody who wanted one of these.
const HINTS: [(&str, &str); 8] = [
    ("http.", "policy has no network; put what it needs into data"),
    (
        "net.",
        "policy has no network; the address and its class are in input.destination",
    ),
    (
        "time.",
        "decisions must replay; the time is input.time, in nanoseconds",
    ),
    ("opa.", "policy cannot see the machine it runs on"),
    (
        "rand.",
        "decisions must replay; input.request.id differs in each request",
    ),
    (
        "uuid.",
        "decisions must replay; input.request.id differs in each request",
    ),
    (
        "numbers.range",
        "it cannot be bounded; iterate over something that exists",
    ),
    (
        "trace",
        "policy has no output but its decision; use `wallgate policy eval`",
    ),
];

fn hint(name: &str) -> &'static str {
    HINTS.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(
        "it is not a rule of the bundle or an allowed built-in",
        |(_, hint)| hint,
    )
}

fn is_allowed(name: &str) -> bool {
    ALLOWED_BUILTINS.binary_search(&name).is_ok()
}

/// What the bundle declares, and that it calls nothing else.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    /// Every rule's path, `data.…`, in order.
    pub(crate) rules: BTreeSet<String>,
    /// Each reference to `data` that no rule's package begins: what the rules read of the data, by dotted path.
    pub(crate) reads: BTreeSet<String>,
    /// What the engine's program does not do as the language says.
    pub(crate) assignments: Assignments,
}

/// Reads the engine's syntax tree (`tree`, JSON) of `files`.
pub(crate) fn outline(tree: &str, files: &[&BundleFile]) -> Result<Outline, BundleError> {
    let whole = |message: &str| BundleError::Rego {
        place: Place::file(files.first().map_or("", |file| file.path.as_str())),
        message: message.to_owned(),
    };
    if depth(tree) > MAX_TREE_DEPTH {
        return Err(whole("an expression of the bundle nests too deeply"));
    }
    let mut deserializer = serde_json::Deserializer::from_str(tree);
    deserializer.disable_recursion_limit();
    let trees: Vec<Value> = serde::Deserialize::deserialize(&mut deserializer)
        .map_err(|error| whole(&format!("the engine's syntax tree cannot be read: {error}")))?;

    let mut outline = Outline::default();
    let modules: Vec<Module<'_>> = trees
        .iter()
        .zip(files)
        .filter_map(|(tree, file)| Module::of(tree, file))
        .collect();
    if modules.len() != files.len() {
        return Err(whole("the engine's syntax tree has an unknown form"));
    }
    for module in &modules {
        for rule in &module.rules {
            if let Some(name) = rule_name(rule) {
                outline.rules.insert(format!("{}.{name}", module.package));
            }
        }
    }
    for module in &modules {
        for rule in &module.rules {
            module.check(rule, &mut outline)?;
        }
    }
    outline.assignments = assignment::assignments(&trees, files);
    Ok(outline)
}

/// How deep brackets nest in a JSON text.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth = depth.saturating_add(1);
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

struct Module<'a> {
    file: &'a str,
    package: String,
    imports: Vec<(String, String)>,
    rules: Vec<&'a Value>,
}

impl<'a> Module<'a> {
    fn of(tree: &'a Value, file: &'a BundleFile) -> Option<Self> {
        let ast = tree.get("ast")?;
        let package = dotted(ast.pointer("/package/refr")?)?;
        let imports = ast.get("imports")?.as_array()?.iter().filter_map(|import| {
            let path = dotted(import.get("refr")?)?;
            let alias = match import.get("as") {
                Some(span) if !span.is_null() => text_of(&file.text, span)?.to_owned(),
                _ => path.rsplit('.').next()?.to_owned(),
            };
            Some((alias, path))
        });
        Some(Self {
            file: &file.path,
            package: format!("data.{package}"),
            imports: imports.collect(),
            rules: ast.get("rules")?.as_array()?.iter().collect(),
        })
    }

    fn place(&self, span: Option<&Value>) -> Place {
        let number = |name: &str| {
            span.and_then(|span| span.get(name)?.as_u64())
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(0)
        };
        Place {
            file: self.file.to_owned(),
            line: number("line"),
            column: number("col"),
        }
    }

    /// The name with a leading import's alias replaced by what was imported.
    fn resolve(&self, name: &str) -> String {
        let (first, rest) = name
            .split_once('.')
            .map_or((name, ""), |(first, rest)| (first, rest));
        match self.imports.iter().find(|(alias, _)| alias == first) {
            Some((_, path)) if rest.is_empty() => path.clone(),
            Some((_, path)) => format!("{path}.{rest}"),
            None => name.to_owned(),
        }
    }

    fn check(&self, node: &Value, outline: &mut Outline) -> Result<(), BundleError> {
        match node {
            Value::Object(fields) => {
                if let Some(call) = fields.get("Call") {
                    self.check_function(call.get("fcn"), outline)?;
                }
                if let Some(modifiers) = fields.get("with_mods").and_then(Value::as_array) {
                    for modifier in modifiers {
                        self.check_modifier(modifier, outline)?;
                    }
                }
                if fields.contains_key("RefDot") || fields.contains_key("RefBrack") {
                    return self.check_reference(node, outline);
                }
                fields.values().try_for_each(|field| self.check(field, outline))
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.check(item, outline)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    /// Notes what a reference reads, and looks into its computed parts.
    fn check_reference(&self, node: &Value, outline: &mut Outline) -> Result<(), BundleError> {
        if let Some(name) = static_prefix(node).map(|name| self.resolve(&name))
            && name.starts_with("data.")
        {
            outline.reads.insert(name);
        }
        let mut rest = node;
        loop {
            let inner = rest.get("RefDot").or_else(|| rest.get("RefBrack"));
            let Some(inner) = inner else {
                return if rest.get("Var").is_some() {
                    Ok(())
                } else {
                    self.check(rest, outline)
                };
            };
            if let Some(index) = inner.get("index") {
                self.check(index, outline)?;
            }
            let Some(next) = inner.get("refr") else {
                return Ok(());
            };
            rest = next;
        }
    }

    fn check_function(&self, function: Option<&Value>, outline: &Outline) -> Result<(), BundleError> {
        let name = function.and_then(dotted).unwrap_or_default();
        let declared = [self.resolve(&name), format!("{}.{name}", self.package)]
            .iter()
            .any(|path| outline.rules.contains(path));
        if declared || is_allowed(&name) {
            return Ok(());
        }
        Err(BundleError::Forbidden {
            place: self.place(function.and_then(span_of)),
            hint: hint(&name),
            name,
        })
    }

    /// `with TARGET as REPLACEMENT`: input, data, or an allowed function; never the name of another built-in.
    fn check_modifier(&self, modifier: &Value, outline: &Outline) -> Result<(), BundleError> {
        let target = modifier.get("refr");
        let name = target.and_then(static_prefix).unwrap_or_default();
        let root = name.split('.').next().unwrap_or_default();
        if root != "input" && root != "data" {
            self.check_function(target, outline)?;
        }
        let replacement = modifier.get("as");
        let Some(name) = replacement.and_then(dotted) else {
            return Ok(());
        };
        // A dotted name could be a field of a local variable; one that is called like a built-in's namespace is not.
        if HINTS.iter().any(|(prefix, _)| name.starts_with(prefix)) {
            self.check_function(replacement, outline)?;
        }
        Ok(())
    }
}

/// The name that a rule's head declares, up to its first variable part.
pub(crate) fn rule_name(rule: &Value) -> Option<String> {
    let head = rule.pointer("/Spec/head").or_else(|| rule.get("Default"))?;
    let reference = head
        .get("refr")
        .or_else(|| head.as_object()?.values().next()?.get("refr"))?;
    static_prefix(reference)
}

/// Where a name begins: a dotted reference's own span points at its dot.
fn span_of(node: &Value) -> Option<&Value> {
    let mut node = node;
    while let Some(inner) = node.get("RefDot").or_else(|| node.get("RefBrack")) {
        node = inner.get("refr")?;
    }
    node.as_object()?.values().next()?.get("span")
}

pub(crate) fn text_of<'a>(text: &'a str, span: &Value) -> Option<&'a str> {
    let bound = |name: &str| usize::try_from(span.get(name)?.as_u64()?).ok();
    text.get(bound("start")?..bound("end")?)
}

/// `a.b["c"]` as `a.b.c`; nothing when a part is computed.
fn dotted(node: &Value) -> Option<String> {
    parts(node, true).map(|parts| parts.join("."))
}

/// `a.b[x].c` as `a.b`: the part before the first computed one.
pub(crate) fn static_prefix(node: &Value) -> Option<String> {
    parts(node, false).map(|parts| parts.join("."))
}

fn parts(node: &Value, whole: bool) -> Option<Vec<&str>> {
    if let Some(variable) = node.get("Var") {
        return Some(vec![variable.get("value")?.as_str()?]);
    }
    if let Some(dot) = node.get("RefDot") {
        let mut parts = parts_and_completeness(dot.get("refr")?, whole)?;
        if parts.1 {
            parts.0.push(field_of(dot)?);
        }
        return Some(parts.0);
    }
    if node.get("RefBrack").is_some() {
        return parts_and_completeness(node, whole).map(|(parts, _)| parts);
    }
    None
}

/// The parts, and whether they are all of the reference.
fn parts_and_completeness(node: &Value, whole: bool) -> Option<(Vec<&str>, bool)> {
    if let Some(variable) = node.get("Var") {
        return Some((vec![variable.get("value")?.as_str()?], true));
    }
    if let Some(dot) = node.get("RefDot") {
        let (mut parts, complete) = parts_and_completeness(dot.get("refr")?, whole)?;
        if complete {
            parts.push(field_of(dot)?);
        }
        return Some((parts, complete));
    }
    let bracket = node.get("RefBrack")?;
    let (mut parts, complete) = parts_and_completeness(bracket.get("refr")?, whole)?;
    let index = bracket.pointer("/index/String/value").and_then(Value::as_str);
    match index {
        Some(key) if complete => {
            parts.push(key);
            Some((parts, true))
        }
        _ if whole => None,
        _ => Some((parts, false)),
    }
}

fn field_of(dot: &Value) -> Option<&str> {
    dot.get("field")?.as_array()?.get(1)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allow_list_is_sorted_for_its_binary_search() {
        assert!(ALLOWED_BUILTINS.is_sorted());
    }

    #[test]
    fn nothing_impure_or_unbounded_is_on_the_allow_list() {
        for name in [
            "http.send",
            "net.lookup_ip_addr",
            "opa.runtime",
            "time.now_ns",
            "rand.intn",
            "uuid.rfc4122",
            "trace",
            "print",
            "numbers.range",
            "numbers.range_step",
            "bits.lsh",
            "__builtin_host_await",
        ] {
            assert!(!is_allowed(name), "{name}");
        }
    }
}
