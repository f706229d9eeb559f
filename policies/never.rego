# What no rule can allow: cloud metadata, addresses inside, DNS inside HTTPS, and making tokens.
package wallgate

import rego.v1

metadata_names := {
	"metadata",
	"metadata.google.internal",
	"metadata.goog",
	"instance-data",
	"instance-data.ec2.internal",
	"metadata.azure.internal",
	"metadata.tencentyun.com",
}

refusals contains deny("never.metadata", "Cloud metadata services hand out the host's own credentials. They are never reachable.") if {
	metadata_names[input.request.host]
}

refusals contains deny("never.metadata", "Cloud metadata services hand out the host's own credentials. They are never reachable.") if {
	input.destination.class == "metadata"
}

# Literal addresses that are not public. A name that resolves to one is refused by wallgate itself unless the operator
# made an explicit exception for name, address and port.
refusals contains deny("never.internal", "Addresses that are not public are reached by a configured name or not at all.") if {
	input.destination.class
	not input.destination.class in {"public", "metadata"}
	not input.destination.service
}

# DNS over HTTPS would be a way round the broker's own name service.
refusals contains deny("never.doh", "DNS over HTTPS is not let through. Use the sandbox's name server.") if {
	is_doh
}

is_doh if input.request.body.type == "application/dns-message"

is_doh if "application/dns-message" in input.request.headers.accept

is_doh if input.request.path == "/dns-query"

# A token that a service mints for the sandbox would be a credential inside it.
refusals contains deny("never.token_mint", "This endpoint makes a new credential, and credentials stay outside the sandbox.") if {
	input.request.protocol != "dns"
	is_token_mint
}

is_token_mint if {
	some suffix in {
		"/oauth/token",
		"/oauth2/token",
		"/oauth2/v2.0/token",
		"/login/oauth/access_token",
		"/access/api/v1/tokens",
		"/-/npm/v1/tokens",
	}
	endswith(input.request.path, suffix)
}

is_token_mint if {
	["app", "installations", _, "access_tokens"] = input.request.segments
}

is_token_mint if {
	contains(input.request.path, ":")
	some segment in input.request.segments
	some verb in {":generateAccessToken", ":generateIdToken", ":signBlob", ":signJwt"}
	endswith(segment, verb)
}

# A container registry's token service, and the one that assumes roles.
is_token_mint if {
	input.request.path in {"/token", "/v2/token"}
	input.request.query.scope
}

is_token_mint if {
	some action in input.request.query.Action
	action in {"AssumeRole", "AssumeRoleWithSAML", "AssumeRoleWithWebIdentity", "GetSessionToken", "GetFederationToken"}
}
