"""Configs of TLS and SASL, which may have a listener prefix, those of SASL also a mechanism; and of the authorizer.

See broker/security.py.
"""

from kbroker.config.config_def import HIGH, LOW, MEDIUM, PER_BROKER, READ_ONLY, ConfigKey
from kbroker.config.validators import at_least, list_of, one_of
from kbroker.config.values import BOOLEAN, CLASS, INT, LIST, LONG, PASSWORD, STRING

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

# fmt: off
KEYS = (
    ConfigKey("connection.failed.authentication.delay.ms", INT, 100, at_least(0), LOW, READ_ONLY,
        "Time after a failed login before the client gets the error and its connection is closed."),
    ConfigKey("connections.max.reauth.ms", LONG, 0, None, MEDIUM, READ_ONLY,
        "Time after which a SASL client must authenticate again (KIP-368); 0 means never. A connection that has not "
        "done so is closed at its next request."),
    ConfigKey("sasl.enabled.mechanisms", LIST, ("GSSAPI",), list_of(), MEDIUM, PER_BROKER,
        "SASL mechanisms of clients: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. A listener with SASL needs at "
        "least one."),
    ConfigKey("sasl.jaas.config", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "The users of PLAIN, with the prefix listener.name.<listener>.plain, as options user_NAME=PASSWORD of Kafka's "
        "org.apache.kafka.common.security.plain.PlainLoginModule."),
    ConfigKey("sasl.oauthbearer.allow.unverified.audience", BOOLEAN, False, None, MEDIUM, READ_ONLY,
        "Whether tokens are accepted although sasl.oauthbearer.expected.audience is not set."),
    ConfigKey("sasl.oauthbearer.allow.unverified.issuer", BOOLEAN, False, None, MEDIUM, READ_ONLY,
        "Whether tokens are accepted although sasl.oauthbearer.expected.issuer is not set."),
    ConfigKey("sasl.oauthbearer.clock.skew.seconds", INT, 30, None, LOW, READ_ONLY,
        "Allowed difference between the clocks of the identity provider and of the broker."),
    ConfigKey("sasl.oauthbearer.expected.audience", LIST, (), list_of(), HIGH, READ_ONLY,
        "Audiences, one of which a token must have."),
    ConfigKey("sasl.oauthbearer.expected.issuer", STRING, None, None, HIGH, READ_ONLY,
        "Issuer that a token must have."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000, None, LOW, READ_ONLY,
        "Age of the identity provider's keys at which the next login reads them again."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10_000, None, LOW, READ_ONLY,
        "Maximum time between two attempts to read the keys of the identity provider. A token with an unknown key "
        "causes one after this time, too."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100, None, LOW, READ_ONLY,
        "Time between the first two attempts to read the keys of the identity provider."),
    ConfigKey("sasl.oauthbearer.jwks.endpoint.url", STRING, None, None, MEDIUM, READ_ONLY,
        "URL of the identity provider's keys (JWKS): file:, http: or https:. OAUTHBEARER needs it."),
    ConfigKey("sasl.oauthbearer.scope.claim.name", STRING, "scope", None, LOW, READ_ONLY,
        "Name of the claim that holds a token's scope. It is only checked."),
    ConfigKey("sasl.oauthbearer.sub.claim.name", STRING, "sub", None, LOW, READ_ONLY,
        "Name of the claim that holds a token's subject, which is the user."),
    ConfigKey("sasl.server.callback.handler.class", CLASS, None, None, MEDIUM, READ_ONLY,
        "Class that verifies the tokens of OAUTHBEARER, with the prefix listener.name.<listener>.oauthbearer. The only "
        "one is org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler, also if it is not "
        "set."),
    ConfigKey("sasl.server.max.receive.size", INT, 524_288, at_least(1), MEDIUM, READ_ONLY,
        "Maximum size of a request before and during a login, in bytes. Those of more than 64 KiB have 4 MiB together "
        "on each listener."),
    ConfigKey("security.inter.broker.protocol", STRING, "PLAINTEXT",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), MEDIUM, READ_ONLY,
        "Name of the inter-broker listener, unless inter.broker.listener.name is set."),
    ConfigKey("ssl.cipher.suites", LIST, (), list_of(), MEDIUM, PER_BROKER,
        "Allowed cipher suites, with their IANA names; empty for the defaults. Those of TLSv1.3 cannot be limited."),
    ConfigKey("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), MEDIUM, PER_BROKER,
        "Client certificates: required, requested (optional) or none."),
    ConfigKey("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), list_of(), MEDIUM, PER_BROKER,
        "Enabled TLS versions: TLSv1.2, TLSv1.3."),
    ConfigKey("ssl.endpoint.identification.algorithm", STRING, "https", None, LOW, PER_BROKER,
        "https: a broker checks the host name in the certificate of another broker. Empty disables the check."),
    ConfigKey("ssl.key.password", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Password of the private key."),
    ConfigKey("ssl.keystore.certificate.chain", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Certificate chain in PEM format, with ssl.keystore.type=PEM and without ssl.keystore.location."),
    ConfigKey("ssl.keystore.key", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Private key in PEM format, with ssl.keystore.type=PEM and without ssl.keystore.location."),
    ConfigKey("ssl.keystore.location", STRING, None, None, MEDIUM, PER_BROKER,
        "File with the private key and its certificates. It is read again when it changes."),
    ConfigKey("ssl.keystore.password", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Password of a PKCS12 key store."),
    ConfigKey("ssl.keystore.type", STRING, "JKS", None, MEDIUM, PER_BROKER,
        "Format of the key store: PEM or PKCS12. As in Java, JKS may be a PKCS12 file; kbroker reads no other."),
    ConfigKey("ssl.principal.mapping.rules", STRING, "DEFAULT", None, LOW, READ_ONLY,
        "Rules that map the distinguished names of certificates to user names; the first match applies."),
    ConfigKey("ssl.protocol", STRING, "TLSv1.3", None, MEDIUM, PER_BROKER,
        "Highest TLS version; TLS means TLSv1.3."),
    ConfigKey("ssl.truststore.certificates", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Trusted certificates in PEM format, with ssl.truststore.type=PEM and without ssl.truststore.location."),
    ConfigKey("ssl.truststore.location", STRING, None, None, MEDIUM, PER_BROKER,
        "File with the CA certificates for those of clients and of other brokers. It is read again when it changes."),
    ConfigKey("ssl.truststore.password", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Password of a PKCS12 trust store."),
    ConfigKey("ssl.truststore.type", STRING, "JKS", None, MEDIUM, PER_BROKER,
        "Format of the trust store, as ssl.keystore.type."),
)

AUTHORIZER_KEYS = (
    ConfigKey("allow.everyone.if.no.acl.found", BOOLEAN, False, None, MEDIUM, READ_ONLY,
        "Of Kafka's authorizer. Whether everyone may use a resource that no ACL covers."),
    ConfigKey("authorizer.class.name", STRING, "", None, LOW, READ_ONLY,
        f"{STANDARD_AUTHORIZER}: ACLs decide what clients may do. Empty: clients may do everything."),
    ConfigKey("super.users", STRING, "", None, HIGH, READ_ONLY,
        "Of Kafka's authorizer. Principals that may do everything, such as User:admin, separated by semicolons."),
)
# fmt: on
