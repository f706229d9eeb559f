//! Each ecosystem's own grammar of names and versions. Nothing else goes through a mirror read.

/// The longest version, in bytes.
const MAX_VERSION_BYTES: usize = 128;
/// The longest word: a tag, a revision.
const MAX_WORD_BYTES: usize = 64;
/// npm: "must be less than or equal to 214 characters", the scope included.
const MAX_NPM_BYTES: usize = 214;
/// The longest PyPI project name.
const MAX_PROJECT_BYTES: usize = 100;
/// The public registry's bound, which cargo's own index paths never need to exceed.
const MAX_CRATE_BYTES: usize = 64;

/// `name` or `@scope/name`: URL-safe, not hidden, not npm's own namespace `-`. Old names may have capitals.
pub(super) fn is_npm_package(text: &str) -> bool {
    if text.len() > MAX_NPM_BYTES {
        return false;
    }
    match text.strip_prefix('@') {
        Some(scoped) => scoped
            .split_once('/')
            .is_some_and(|(scope, name)| is_npm_label(scope) && is_npm_label(name)),
        None => is_npm_label(text) && !matches!(text, "node_modules" | "favicon.ico"),
    }
}

fn is_npm_label(text: &str) -> bool {
    let first = text.as_bytes().first();
    first.is_some_and(u8::is_ascii_alphanumeric)
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~'))
}

/// The name without its scope.
pub(super) fn npm_base(package: &str) -> &str {
    package.rsplit('/').next().unwrap_or(package)
}

/// `VERSION` of `NAME-VERSIONsuffix`.
pub(super) fn version_between<'a>(file: &'a str, name: &str, suffix: &str) -> Option<&'a str> {
    file.strip_prefix(name)?.strip_prefix('-')?.strip_suffix(suffix)
}

/// Semantic Versioning 2.0.0.
pub(super) fn is_semver(text: &str) -> bool {
    if text.len() > MAX_VERSION_BYTES {
        return false;
    }
    let (rest, build) = text
        .split_once('+')
        .map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest
        .split_once('-')
        .map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let identifiers = |part: Option<&str>| {
        part.is_none_or(|part| {
            part.split('.').all(|identifier| {
                !identifier.is_empty() && identifier.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            })
        })
    };
    let numbers = core.split('.').collect::<Vec<_>>();
    let number = |text: &&str| {
        !text.is_empty()
            && text.len() <= 20
            && text.bytes().all(|b| b.is_ascii_digit())
            && (*text == "0" || !text.starts_with('0'))
    };
    numbers.len() == 3 && numbers.iter().all(number) && identifiers(pre) && identifiers(build)
}

/// A tag, revision or other short word.
pub(super) fn is_word(text: &str) -> bool {
    text.len() <= MAX_WORD_BYTES
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// PEP 508 names: letters, digits, inner `.`, `-` and `_`.
pub(super) fn is_pypi_project(text: &str) -> bool {
    text.len() <= MAX_PROJECT_BYTES
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.as_bytes().last().is_some_and(u8::is_ascii_alphanumeric)
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// PEP 503: lower case, and one `-` for each run of `-`, `_` and `.`.
pub(crate) fn normalise_pypi(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for c in name.chars() {
        if matches!(c, '-' | '_' | '.') {
            if !normal.ends_with('-') {
                normal.push('-');
            }
        } else {
            normal.push(c.to_ascii_lowercase());
        }
    }
    normal
}

/// The characters of a PEP 440 version, with an optional local part, beginning with a digit (`1!2.0rc1.post2+local.1`).
pub(super) fn is_pep440(text: &str) -> bool {
    let text = text.strip_prefix('v').unwrap_or(text);
    text.len() <= MAX_VERSION_BYTES
        && text.as_bytes().first().is_some_and(u8::is_ascii_digit)
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'!' | b'+' | b'-' | b'_'))
}

/// Project and version of a wheel (PEP 427) or a source archive (PEP 625 and older).
pub(super) fn pypi_distribution(file: &str) -> Option<(&str, &str)> {
    if let Some(stem) = file.strip_suffix(".whl") {
        let parts: Vec<&str> = stem.split('-').collect();
        let tag = |part: &&str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'))
        };
        let (project, version, tags) = match parts.as_slice() {
            [project, version, tags @ ..] if matches!(tags.len(), 3 | 4) => (*project, *version, tags),
            _ => return None,
        };
        return (is_pypi_project(project) && is_pep440(version) && tags.iter().all(tag))
            .then_some((project, version));
    }
    let stem = [".tar.gz", ".zip", ".tar.bz2", ".tgz"]
        .iter()
        .find_map(|suffix| file.strip_suffix(suffix))?;
    // The project may have hyphens of its own: the version begins after the last one that a digit follows.
    let (cut, _) = stem.rmatch_indices('-').find(|(at, _)| {
        stem.as_bytes()
            .get(at.saturating_add(1))
            .is_some_and(u8::is_ascii_digit)
    })?;
    let (project, version) = (stem.get(..cut)?, stem.get(cut.saturating_add(1)..)?);
    (is_pypi_project(project) && is_pep440(version)).then_some((project, version))
}

/// Letters, digits, `-` and `_`, beginning with a letter or `_`.
pub(super) fn is_crate(text: &str) -> bool {
    text.len() <= MAX_CRATE_BYTES
        && text
            .as_bytes()
            .first()
            .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

/// Where a sparse index keeps a crate, without its name: `1`, `2`, `3/a`, `ab/cd`.
pub(super) fn index_prefix(name: &str) -> Option<String> {
    match name.len() {
        0 => None,
        1 | 2 => Some(name.len().to_string()),
        3 => Some(format!("3/{}", name.get(..1)?)),
        _ => Some(format!("{}/{}", name.get(..2)?, name.get(2..4)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semantic_versions_are_told_from_words() {
        for good in ["0.0.0", "1.2.3", "1.2.3-rc.1", "1.2.3-0a+b.7", "10.20.30+build-1"] {
            assert!(is_semver(good), "{good}");
        }
        for bad in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "01.2.3",
            "1.2.3-",
            "1.2.3+",
            "1.2.3-a..b",
            "v1.2.3",
            "1.2.x",
            "latest",
            "1.2.3 ",
        ] {
            assert!(!is_semver(bad), "{bad}");
        }
    }

    #[test]
    fn archives_name_their_project_and_version() {
        let rows = [
            ("lp_demo-1.0.0-py3-none-any.whl", Some(("lp_demo", "1.0.0"))),
            (
                "a-1.0-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
                Some(("a", "1.0")),
            ),
            ("lp-demo-1.0.tar.gz", Some(("lp-demo", "1.0"))),
            ("a-b-2-1.0rc1.zip", Some(("a-b-2", "1.0rc1"))),
            ("demo.tar.gz", None),
            ("demo-1.0.exe", None),
            ("demo-1.0.whl", None),
            ("-1.0.tar.gz", None),
        ];
        for (file, expected) in rows {
            assert_eq!(pypi_distribution(file), expected, "{file}");
        }
    }

    #[test]
    fn a_sparse_index_has_one_place_for_each_crate() {
        let rows = [
            ("a", "1"),
            ("ab", "2"),
            ("abc", "3/a"),
            ("serde", "se/rd"),
            ("abcd", "ab/cd"),
        ];
        for (name, expected) in rows {
            assert_eq!(index_prefix(name).as_deref(), Some(expected), "{name}");
        }
    }
}
