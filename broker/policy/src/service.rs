//! stub
use std::collections::HashMap; use std::sync::Arc; use wallgate_types::authority::Host; use wallgate_types::operation::Operation; use crate::classify::Profile;
/// s
#[derive(Debug)] pub struct NameList;
/// s
#[derive(Debug)] pub struct Service { /// n
 pub name: String, /// p
 pub profile: Profile, /// n
 pub names: Option<NameList> }
impl Service { /// a
 pub fn admits(&self, _o: &Operation) -> bool { true } }
/// m
#[derive(Debug, Default)] pub struct ServiceMap(HashMap<Host, Arc<Service>>);
/// e
#[derive(Debug)] pub struct ServiceError;
impl ServiceMap { /// i
 pub fn insert(&mut self, host: Host, service: Arc<Service>) -> Result<(), ServiceError> { self.0.insert(host, service); Ok(()) }
 /// g
 pub fn get(&self, host: &Host) -> Option<&Arc<Service>> { self.0.get(host) } }
