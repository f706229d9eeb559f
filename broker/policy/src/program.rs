//! A bundle, compiled: the engine's program, what is checked of it, and how it is run.
//!
//! The engine is regorus' register machine. It leaves four things to its user, which are done here:
//!
//! - **Recursion** is only found by the engine when the stack is gone. The program's call graph is walked before its
//!   first run; a circle or a chain deeper than [`MAX_CALL_DEPTH`] refuses the bundle, and so does a reference whose rule
//!   is known only at run time.
//! - **Conflicts** (two definitions of one complete rule that disagree, or two values for one key of a partial object)
//!   make a rule undefined instead of failing. Where the decision itself conflicts that is a denial already; where a
//!   helper does, `not helper` would hold. So when a program has a helper that could conflict, each allow is confirmed by
//!   the engine's interpreter, for which a conflict is an error. Programs without one are not slowed down.
//! - **Assignments** of something undefined (`role := data.roles[input.sandbox.id]`) do not fail, as they must: whatever
//!   follows would be decided with nothing. They are spelled as unifications, which do fail, before the program is made;
//!   where that would mean something else, each allow is confirmed as above. See [`crate::assignment`].
//! - **Panics** are caught; the machine that panicked is thrown away, and so is one that failed in any way.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::Instruction;
use regorus::rvm::program::{Program, RuleType};
use regorus::rvm::vm::{RegoVM, VmError};
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{CompiledPolicy, Engine, LimitError, MemoryBudgetConfig, Value};
use thiserror::Error;

use crate::bundle::{Bundle, BundleError, BundleFile, Place};
use crate::capability::{self, ALLOWED_BUILTINS, Outline};
use crate::policy::PolicyLimits;
use crate::refusal::{self, Refusal};

/// The deepest chain of rules that call each other.
pub(crate) const MAX_CALL_DEPTH: usize = 64;
/// Machines that are kept for reuse.
const MAX_IDLE_MACHINES: usize = 64;
/// Instructions between two looks at the clock.
const CLOCK_CHECK_INTERVAL: NonZeroU32 = NonZeroU32::new(64).unwrap();

pub(crate) const DECISION: &str = "data.wallgate.decision";
pub(crate) const BODY: &str = "data.wallgate.body";

/// Why an evaluation gave no answer.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum EvalError {
    /// No rule applied.
    #[error("the policy's answer is undefined")]
    Undefined,
    /// The engine reported an error.
    #[error("the policy failed: {0}")]
    Failed(String),
    /// The answer is not a decision.
    #[error("the policy's answer is not a decision: {0}")]
    Type(String),
    /// [`PolicyLimits::eval_timeout`] or [`PolicyLimits::eval_instructions`].
    #[error("the policy took too long: {0}")]
    Timeout(String),
    /// [`PolicyLimits::eval_memory_bytes`].
    #[error("the policy needed too much memory: {0}")]
    Memory(String),
    /// A defect in the engine.
    #[error("the policy engine panicked")]
    Panicked,
}

impl EvalError {
    /// What it is refused by.
    #[must_use]
    pub const fn refusal(&self) -> Refusal {
        match self {
            Self::Undefined => refusal::UNDEFINED,
            Self::Failed(_) => refusal::ERROR,
            Self::Type(_) => refusal::TYPE,
            Self::Timeout(_) => refusal::TIMEOUT,
            Self::Memory(_) => refusal::MEMORY,
            Self::Panicked => refusal::PANIC,
        }
    }
}

/// Which rule to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Decision = 0,
    Body = 1,
}

pub(crate) struct Compiled {
    program: Arc<Program>,
    data: Value,
    limits: PolicyLimits,
    has_body_rule: bool,
    /// Set when a helper rule could conflict: see the module's documentation.
    confirmation: Option<CompiledPolicy>,
    idle: Mutex<Vec<RegoVM>>,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("rules", &self.program.rule_infos.len())
            .field("has_body_rule", &self.has_body_rule)
            .field("confirmed", &self.confirmation.is_some())
            .finish_non_exhaustive()
    }
}

/// An engine that holds `files` and the bundle's data, and what the files declare.
pub(crate) fn engine_of(
    files: &[&BundleFile],
    data: &serde_json::Value,
) -> Result<(Engine, Outline), BundleError> {
    let mut engine = Engine::new();
    engine.set_strict_builtin_errors(true);
    for file in files {
        engine
            .add_policy(file.path.clone(), file.text.clone())
            .map_err(|error| rego_error(&file.path, &error))?;
    }
    let tree = engine.get_ast_as_json().map_err(|error| rego_error("", &error))?;
    let outline = capability::outline(&tree, files)?;
    engine
        .add_data(Value::from(data.clone()))
        .map_err(|error| BundleError::Data {
            place: Place::file("data.json"),
            message: error.to_string(),
        })?;
    Ok((engine, outline))
}

/// The same policy with its assignments spelled as unifications, for the program.
fn unified(
    files: &[&BundleFile],
    data: &serde_json::Value,
    outline: &Outline,
) -> Result<CompiledPolicy, BundleError> {
    let respelled: Vec<BundleFile> = files
        .iter()
        .enumerate()
        .map(|(index, file)| BundleFile {
            path: file.path.clone(),
            text: outline.assignments.respelled(index, &file.text),
        })
        .collect();
    let (mut engine, _) = engine_of(&respelled.iter().collect::<Vec<_>>(), data)?;
    engine
        .compile_with_entrypoint(&DECISION.into())
        .map_err(|error| rego_error("", &error))
}

/// Takes the place out of the engine's message, which is `--> file:line:col`, a quote of the source, `error: message`.
pub(crate) fn rego_error(file: &str, error: &impl fmt::Display) -> BundleError {
    let text = error.to_string();
    let place = text
        .split_once("--> ")
        .and_then(|(_, rest)| rest.lines().next())
        .and_then(|place| {
            let mut parts = place.trim().rsplitn(3, ':');
            let column = parts.next()?.parse().ok()?;
            let line = parts.next()?.parse().ok()?;
            Some(Place {
                file: parts.next()?.to_owned(),
                line,
                column,
            })
        })
        .unwrap_or_else(|| Place::file(if file.is_empty() { "bundle" } else { file }));
    let message = match text.rsplit_once("\nerror: ") {
        Some((_, message)) => message.trim().to_owned(),
        None => text.trim().trim_start_matches("error: ").to_owned(),
    };
    BundleError::Rego { place, message }
}

impl Compiled {
    pub(crate) fn new(bundle: &Bundle, limits: &PolicyLimits) -> Result<(Self, Outline), BundleError> {
        let files: Vec<&BundleFile> = bundle.policies.iter().collect();
        catch_unwind(AssertUnwindSafe(|| Self::compile(&files, &bundle.data, limits))).unwrap_or_else(
            |_panic| {
                Err(BundleError::Rego {
                    place: Place::file("bundle"),
                    message: "the policy engine failed on this bundle, which is a defect of the engine"
                        .to_owned(),
                })
            },
        )
    }

    fn compile(
        files: &[&BundleFile],
        data: &serde_json::Value,
        limits: &PolicyLimits,
    ) -> Result<(Self, Outline), BundleError> {
        let (mut engine, outline) = engine_of(files, data)?;
        if !outline.rules.contains(DECISION) {
            return Err(BundleError::NoDecision);
        }
        let has_body_rule = outline.rules.contains(BODY);
        let policy = engine
            .compile_with_entrypoint(&DECISION.into())
            .map_err(|error| rego_error("", &error))?;
        let respelled = unified(files, data, &outline);
        // What the compiler does not take respelled is compiled as it stands, and confirmed.
        let doubtful = outline.assignments.doubtful || respelled.is_err();
        let source = respelled.as_ref().unwrap_or(&policy);
        let entries: &[&str] = if has_body_rule {
            &[DECISION, BODY]
        } else {
            &[DECISION]
        };
        let program =
            Compiler::compile_from_policy(source, entries).map_err(|error| rego_error("", &error))?;
        check_builtins(&program)?;
        let called = check_calls(&program)?;
        let confirmation = (doubtful || could_conflict(&program, &called)).then_some(policy);
        let compiled = Self {
            program,
            data: Value::from(data.clone()),
            limits: limits.clone(),
            has_body_rule,
            confirmation,
            idle: Mutex::new(Vec::new()),
        };
        let machine = compiled.machine().map_err(|error| BundleError::Data {
            place: Place::file("data.json"),
            message: error.to_string(),
        })?;
        compiled.keep(machine);
        Ok((compiled, outline))
    }

    pub(crate) const fn has_body_rule(&self) -> bool {
        self.has_body_rule
    }

    fn machine(&self) -> Result<RegoVM, VmError> {
        let mut machine = RegoVM::new();
        machine.load_program(Arc::clone(&self.program));
        machine.set_strict_builtin_errors(true);
        machine.set_max_instructions(self.limits.eval_instructions);
        machine.set_execution_timer_config(Some(ExecutionTimerConfig {
            limit: self.limits.eval_timeout,
            check_interval: CLOCK_CHECK_INTERVAL,
        }));
        machine.set_memory_budget_config(
            NonZeroU64::new(self.limits.eval_memory_bytes).map(|limit| MemoryBudgetConfig { limit }),
        );
        machine.set_data(self.data.clone())?;
        Ok(machine)
    }

    fn keep(&self, mut machine: RegoVM) {
        // A request's body must not outlive the request in an idle machine.
        machine.set_input(Value::Undefined);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_MACHINES {
            idle.push(machine);
        }
    }

    /// Asks one rule. Whatever goes wrong is an error, never an answer.
    pub(crate) fn evaluate(&self, entry: Entry, input: Value) -> Result<Value, EvalError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut machine = match idle {
            Some(machine) => machine,
            None => self.machine().map_err(|error| vm_error(&error))?,
        };
        machine.set_input(input);
        let outcome = catch_unwind(AssertUnwindSafe(move || {
            let outcome = machine.execute_entry_point_by_index(entry as usize);
            (outcome, machine)
        }));
        let Ok((outcome, machine)) = outcome else {
            return Err(EvalError::Panicked);
        };
        // A machine that failed is dropped: what it holds is in no known state.
        let value = outcome.map_err(|error| vm_error(&error))?;
        self.keep(machine);
        if value == Value::Undefined {
            return Err(EvalError::Undefined);
        }
        Ok(value)
    }

    /// Asks the interpreter whether it says the same of `input`, when this program needs that.
    pub(crate) fn confirm(&self, input: Value, answer: &Value) -> Result<(), EvalError> {
        let Some(policy) = &self.confirmation else {
            return Ok(());
        };
        let confirmed = catch_unwind(AssertUnwindSafe(|| policy.eval_with_input(input)))
            .map_err(|_panic| EvalError::Panicked)?
            .map_err(|error| match error.downcast_ref::<LimitError>() {
                Some(LimitError::TimeLimitExceeded { .. }) => EvalError::Timeout(error.to_string()),
                Some(_) => EvalError::Memory(error.to_string()),
                None => EvalError::Failed(error.to_string()),
            })?;
        if confirmed == *answer {
            Ok(())
        } else {
            Err(EvalError::Failed(
                "two ways of evaluating the policy disagree".to_owned(),
            ))
        }
    }

    /// Whether an allow needs the interpreter's confirmation.
    pub(crate) const fn needs_confirmation(&self) -> bool {
        self.confirmation.is_some()
    }
}

fn vm_error(error: &VmError) -> EvalError {
    let text = error.to_string();
    match error {
        VmError::TimeLimitExceeded { .. } | VmError::InstructionLimitExceeded { .. } => {
            EvalError::Timeout(text)
        }
        VmError::MemoryLimitExceeded { .. }
        | VmError::MemoryBudgetExceeded { .. }
        | VmError::RegexSizeLimitExceeded { .. } => EvalError::Memory(text),
        _ => EvalError::Failed(text),
    }
}

/// The last word on capabilities: what the program itself can call.
fn check_builtins(program: &Program) -> Result<(), BundleError> {
    let foreign = program
        .builtin_info_table
        .iter()
        .map(|builtin| builtin.name.as_str())
        .find(|name| ALLOWED_BUILTINS.binary_search(name).is_err());
    match foreign {
        None if !program.has_host_await => Ok(()),
        name => Err(BundleError::Forbidden {
            place: Place::file("bundle"),
            name: name.unwrap_or("__builtin_host_await").to_owned(),
            hint: "it is not an allowed built-in",
        }),
    }
}

/// Which rules each rule calls. `None` is what is outside all rules: the entry points.
type Calls = BTreeMap<Option<usize>, Vec<usize>>;

fn calls_of(program: &Program) -> Result<Calls, BundleError> {
    // Code of a rule begins at its definitions' and destructuring blocks' addresses; what lies between two of those
    // belongs to the first.
    let mut begins: BTreeMap<usize, usize> = BTreeMap::new();
    for (rule, info) in program.rule_infos.iter().enumerate() {
        let bodies = info.definitions.iter().flatten().copied();
        let blocks = info.destructuring_blocks.iter().flatten().copied();
        for address in bodies.chain(blocks) {
            begins.insert(usize::try_from(address).unwrap_or(usize::MAX), rule);
        }
    }
    let mut calls = Calls::new();
    let mut current = None;
    for (address, instruction) in program.instructions.iter().enumerate() {
        if let Some(rule) = begins.get(&address) {
            current = Some(*rule);
        }
        let callee = match instruction {
            Instruction::CallRule { rule_index, .. } => usize::from(*rule_index),
            Instruction::FunctionCall { params_index } => program
                .instruction_data
                .function_call_params
                .get(usize::from(*params_index))
                .map_or(usize::MAX, |params| usize::from(params.func_rule_index)),
            Instruction::VirtualDataDocumentLookup { .. } => {
                return Err(BundleError::Rego {
                    place: place_of(program, address),
                    message: "a rule cannot be chosen by a computed key, nor a whole package be read: \
                              name the rule, or keep the data outside of the packages"
                        .to_owned(),
                });
            }
            _ => continue,
        };
        calls.entry(current).or_default().push(callee);
    }
    Ok(calls)
}

fn place_of(program: &Program, address: usize) -> Place {
    let span = program.instruction_spans.get(address).and_then(Option::as_ref);
    span.map_or_else(
        || Place::file("bundle"),
        |span| Place {
            file: span
                .get_source_name(&program.sources)
                .unwrap_or("bundle")
                .to_owned(),
            line: span.line,
            column: span.column,
        },
    )
}

/// Refuses circles and deep chains; returns which rules are called by rules.
fn check_calls(program: &Program) -> Result<Vec<bool>, BundleError> {
    let calls = calls_of(program)?;
    let mut called = vec![false; program.rule_infos.len()];
    for callee in calls
        .iter()
        .filter(|(caller, _)| caller.is_some())
        .flat_map(|(_, callees)| callees)
    {
        if let Some(flag) = called.get_mut(*callee) {
            *flag = true;
        }
    }
    let mut depths = vec![None; program.rule_infos.len()];
    for rule in 0..program.rule_infos.len() {
        let mut chain = Vec::new();
        depth_below(rule, &calls, &mut depths, &mut chain).map_err(|()| BundleError::Recursion {
            message: describe_chain(program, &chain),
        })?;
    }
    Ok(called)
}

fn describe_chain(program: &Program, chain: &[usize]) -> String {
    let name = |rule: &usize| {
        program
            .rule_infos
            .get(*rule)
            .map_or("?", |info| info.name.as_str())
            .to_owned()
    };
    let last = chain.last();
    let start = last
        .and_then(|last| chain.iter().position(|rule| rule == last))
        .unwrap_or(0);
    let circle: Vec<String> = chain.iter().skip(start).map(name).collect();
    if circle.len() > 1 {
        format!("rules call each other in a circle: {}", circle.join(" -> "))
    } else {
        let first = chain.first().map(name).unwrap_or_default();
        format!("rules call each other more than {MAX_CALL_DEPTH} deep, beginning with {first}")
    }
}

/// Depth-first; `chain` is the path from the root, and on failure ends where the circle closes or the depth is reached.
fn depth_below(
    rule: usize,
    calls: &Calls,
    depths: &mut [Option<usize>],
    chain: &mut Vec<usize>,
) -> Result<usize, ()> {
    if let Some(Some(depth)) = depths.get(rule) {
        return Ok(*depth);
    }
    let circular = chain.contains(&rule);
    chain.push(rule);
    if circular || chain.len() > MAX_CALL_DEPTH {
        return Err(());
    }
    let mut depth = 0;
    for callee in calls.get(&Some(rule)).into_iter().flatten() {
        depth = depth.max(depth_below(*callee, calls, depths, chain)?.saturating_add(1));
    }
    chain.pop();
    if depth.saturating_add(chain.len()) > MAX_CALL_DEPTH {
        return Err(());
    }
    if let Some(slot) = depths.get_mut(rule) {
        *slot = Some(depth);
    }
    Ok(depth)
}

/// Whether a rule that other rules call could be undefined because its definitions disagree.
fn could_conflict(program: &Program, called: &[bool]) -> bool {
    program.rule_infos.iter().zip(called).any(|(info, called)| {
        let alternatives = info.definitions.len() > 1 && !info.early_exit_on_first_success;
        *called
            && match info.rule_type {
                RuleType::Complete => alternatives,
                RuleType::PartialObject => true,
                RuleType::PartialSet => false,
            }
    })
}
