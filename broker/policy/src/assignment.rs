//! Assignments: a place where the engine's program is not the language.
//!
//! In Rego a statement that is undefined fails its body. The program does not fail `name := expression` when the expression
//! is undefined, but goes on with nothing in `name`, so `decision := … if { role := data.roles[input.sandbox.id] }` would
//! hold for everybody. It does fail `name = expression`, which says the same wherever the name is new. So each assignment to
//! a new name has its `:=` replaced by ` =`, which moves no place in the file.
//!
//! What is left is *doubtful*, and makes each allow be confirmed by the engine's interpreter: an assignment that shadows
//! another name, one that the compiler does not take as a unification (in `every`), and an array or object comprehension whose term may be undefined, which the program takes as a value.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::bundle::BundleFile;
use crate::capability::{rule_name, text_of};

/// What is done about a bundle's assignments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assignments {
    /// The module's index, and the byte at which its `:=` begins.
    unify: BTreeSet<(usize, usize)>,
    /// Something is left that the program may take for something else.
    pub(crate) doubtful: bool,
}

impl Assignments {
    /// A module's text with its assignments spelled as unifications.
    pub(crate) fn respelled(&self, module: usize, text: &str) -> String {
        let mut respelled = String::with_capacity(text.len());
        let mut from = 0;
        for (_, at) in self.unify.range((module, 0)..(module.saturating_add(1), 0)) {
            respelled.push_str(text.get(from..*at).unwrap_or_default());
            respelled.push_str(" =");
            from = at.saturating_add(2);
        }
        respelled.push_str(text.get(from..).unwrap_or_default());
        respelled
    }
}

/// Looks through the engine's syntax trees of `files`.
pub(crate) fn assignments(trees: &[Value], files: &[&BundleFile]) -> Assignments {
    let mut found = Assignments::default();
    // A name of any module's rule counts for every module: at worst an allow is confirmed that need not be.
    let rules = |tree: &'_ Value| -> Vec<String> {
        let rules = tree.pointer("/ast/rules").and_then(Value::as_array);
        let names = rules.into_iter().flatten().filter_map(rule_name);
        names
            .filter_map(|name| Some(name.split('.').next()?.to_owned()))
            .collect()
    };
    let mut taken: BTreeSet<String> = trees.iter().flat_map(rules).collect();
    taken.extend(["input", "data"].map(str::to_owned));
    for (module, (tree, file)) in trees.iter().zip(files).enumerate() {
        let mut walk = Walk {
            module,
            text: &file.text,
            taken: taken.clone(),
            found: &mut found,
        };
        let imports = tree.pointer("/ast/imports").and_then(Value::as_array);
        for import in imports.into_iter().flatten() {
            walk.import(import);
        }
        let rules = tree.pointer("/ast/rules").and_then(Value::as_array);
        for rule in rules.into_iter().flatten() {
            walk.rule(rule);
        }
    }
    found
}

type Names = BTreeSet<String>;

struct Walk<'a> {
    module: usize,
    text: &'a str,
    /// Names of rules and imports.
    taken: Names,
    found: &'a mut Assignments,
}

impl Walk<'_> {
    fn import(&mut self, import: &Value) {
        let alias = import.get("as").and_then(|span| text_of(self.text, span));
        let last = import.pointer("/refr/RefDot/field/1").and_then(Value::as_str);
        self.taken.extend(alias.or(last).map(str::to_owned));
    }

    fn rule(&mut self, rule: &Value) {
        let Some(spec) = rule.get("Spec") else {
            return;
        };
        let head = spec.get("head");
        let mut outer = Names::new();
        let arguments = head.and_then(|head| head.pointer("/Func/args"));
        self.mentioned(arguments.unwrap_or(&Value::Null), &mut outer);
        let bodies = spec.get("bodies").and_then(Value::as_array);
        let mut inside = outer.clone();
        for body in bodies.into_iter().flatten() {
            let query = body.get("query").unwrap_or(&Value::Null);
            self.mentioned(query, &mut inside);
            self.scope(query, &outer);
        }
        // What a head's value has of scopes of its own sees the body's names.
        self.nested(head.unwrap_or(&Value::Null), &inside);
        for body in bodies.into_iter().flatten() {
            self.nested(body.get("assign").unwrap_or(&Value::Null), &inside);
        }
    }

    /// One query: its own assignments, then the queries in it.
    fn scope(&mut self, query: &Value, outer: &Names) {
        self.assignments_of(query, outer);
        let mut inside = outer.clone();
        self.mentioned(query, &mut inside);
        self.nested(query, &inside);
    }

    fn assignments_of(&mut self, node: &Value, outer: &Names) {
        if let Some(assignment) = node.get("AssignExpr")
            && assignment.get("op").and_then(Value::as_str) == Some("ColEq")
            && let Some(variable) = assignment.pointer("/lhs/Var")
        {
            let name = variable.get("value").and_then(Value::as_str).unwrap_or_default();
            let free = !outer.contains(name) && !self.taken.contains(name);
            match self.operator_after(variable).filter(|_| free) {
                Some(at) => {
                    self.found.unify.insert((self.module, at));
                }
                None => self.found.doubtful = true,
            }
        }
        for child in own_children(node) {
            self.assignments_of(child, outer);
        }
    }

    /// Where the `:=` after a variable is.
    fn operator_after(&self, variable: &Value) -> Option<usize> {
        let end = usize::try_from(variable.pointer("/span/end")?.as_u64()?).ok()?;
        let rest = self.text.get(end..)?;
        let spaces = rest.len().saturating_sub(rest.trim_start().len());
        rest.trim_start()
            .starts_with(":=")
            .then(|| end.saturating_add(spaces))
    }

    /// The names that a query mentions itself, not those of queries in it.
    fn mentioned(&self, node: &Value, names: &mut Names) {
        if let Some(name) = node.pointer("/Var/value").and_then(Value::as_str) {
            names.insert(name.to_owned());
        }
        let declared = node.pointer("/SomeVars/vars").and_then(Value::as_array);
        for span in declared.into_iter().flatten() {
            names.extend(text_of(self.text, span).map(str::to_owned));
        }
        for child in own_children(node) {
            self.mentioned(child, names);
        }
    }

    /// The queries in a node, which see `outer`.
    fn nested(&mut self, node: &Value, outer: &Names) {
        for (kind, scope) in inner_scopes(node) {
            let mut outer = outer.clone();
            for part in ["key", "value"] {
                // The variables of `every`; of an object comprehension these are terms, which are no spans.
                if kind == "Every"
                    && let Some(name) = scope.get(part).and_then(|span| text_of(self.text, span))
                {
                    outer.insert(name.to_owned());
                }
            }
            let terms = ["term", "key", "value"]
                .into_iter()
                .filter_map(|part| scope.get(part));
            if matches!(kind, "ArrayCompr" | "ObjectCompr")
                && !terms.clone().all(|term| self.is_defined(term))
            {
                self.found.doubtful = true;
            }
            let query = scope.get("query").unwrap_or(&Value::Null);
            self.scope(query, &outer);
            self.mentioned(query, &mut outer);
            for part in terms.chain(scope.get("domain")) {
                self.nested(part, &outer);
            }
        }
        for child in own_children(node) {
            self.nested(child, outer);
        }
    }

    /// Whether a term has a value whenever its query holds, or the program checks that it has.
    fn is_defined(&self, term: &Value) -> bool {
        let kind = term.as_object().and_then(|node| node.keys().next());
        match kind.map(String::as_str) {
            Some("Var") => term
                .pointer("/Var/value")
                .and_then(Value::as_str)
                .is_some_and(|name| !self.taken.contains(name)),
            Some(
                "String" | "RawString" | "Number" | "Bool" | "Null" | "Array" | "Object" | "Set"
                | "ArrayCompr" | "SetCompr" | "ObjectCompr",
            ) => true,
            _ => false,
        }
    }
}

const SCOPES: [&str; 4] = ["ArrayCompr", "SetCompr", "ObjectCompr", "Every"];

/// The children of a node without the scopes in it.
fn own_children(node: &Value) -> Vec<&Value> {
    match node {
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !SCOPES.contains(&key.as_str()))
            .map(|(_, child)| child)
            .collect(),
        Value::Array(items) => items.iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// The scopes that are a node's own fields.
fn inner_scopes(node: &Value) -> Vec<(&'static str, &Value)> {
    SCOPES
        .into_iter()
        .filter_map(|kind| Some((kind, node.get(kind)?)))
        .collect()
}
