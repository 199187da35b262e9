"""Broker configs: TLS."""

from kbroker.config.config_def import LOW, MEDIUM, PER_BROKER, READ_ONLY, ConfigKey
from kbroker.config.validators import items, one_of
from kbroker.config.values import BOOLEAN, CLASS, LIST, PASSWORD, STRING

# fmt: off
ROWS = (
    ConfigKey("ssl.allow.dn.changes", BOOLEAN, False, None, LOW, READ_ONLY,
        "Let a new certificate have another distinguished name when certificates are changed at run "
        "time."),
    ConfigKey("ssl.allow.san.changes", BOOLEAN, False, None, LOW, READ_ONLY,
        "Let a new certificate have other alternative names when certificates are changed at run time."),
    ConfigKey("ssl.cipher.suites", LIST, (), items(), MEDIUM, PER_BROKER,
        "Cipher suites that may be used; empty for the defaults."),
    ConfigKey("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), MEDIUM, PER_BROKER,
        "Whether clients must (required), may (requested) or need not (none) show a certificate."),
    ConfigKey("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), items(), MEDIUM, PER_BROKER,
        "Versions of TLS that may be used."),
    ConfigKey("ssl.endpoint.identification.algorithm", STRING, "https", None, LOW, PER_BROKER,
        "How the host name in a server's certificate is checked; empty for not at all."),
    ConfigKey("ssl.engine.factory.class", CLASS, None, None, LOW, PER_BROKER,
        "Class that makes the TLS engines."),
    ConfigKey("ssl.key.password", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Password of the private key."),
    ConfigKey("ssl.keymanager.algorithm", STRING, "SunX509", None, MEDIUM, PER_BROKER,
        "Algorithm of the key manager."),
    ConfigKey("ssl.keystore.certificate.chain", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Certificate chain, in the format of ssl.keystore.type."),
    ConfigKey("ssl.keystore.key", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Private key, in the format of ssl.keystore.type."),
    ConfigKey("ssl.keystore.location", STRING, None, None, MEDIUM, PER_BROKER,
        "File with the private key and its certificates."),
    ConfigKey("ssl.keystore.password", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Password of the key store."),
    ConfigKey("ssl.keystore.type", STRING, "JKS", None, MEDIUM, PER_BROKER,
        "Format of the key store: JKS, PKCS12 or PEM."),
    ConfigKey("ssl.principal.mapping.rules", STRING, "DEFAULT", None, LOW, READ_ONLY,
        "Rules that make a short name from a certificate's distinguished name; the first that matches "
        "counts."),
    ConfigKey("ssl.protocol", STRING, "TLSv1.3", None, MEDIUM, PER_BROKER,
        "Version of TLS with which the context is made."),
    ConfigKey("ssl.provider", STRING, None, None, MEDIUM, PER_BROKER,
        "Security provider for TLS; the platform's where it is not set."),
    ConfigKey("ssl.secure.random.implementation", STRING, None, None, LOW, PER_BROKER,
        "Source of random numbers for TLS."),
    ConfigKey("ssl.trustmanager.algorithm", STRING, "PKIX", None, MEDIUM, PER_BROKER,
        "Algorithm of the trust manager."),
    ConfigKey("ssl.truststore.certificates", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Trusted certificates, in the format of ssl.truststore.type."),
    ConfigKey("ssl.truststore.location", STRING, None, None, MEDIUM, PER_BROKER,
        "File with the trusted certificates."),
    ConfigKey("ssl.truststore.password", PASSWORD, None, None, MEDIUM, PER_BROKER,
        "Password of the trust store."),
    ConfigKey("ssl.truststore.type", STRING, "JKS", None, MEDIUM, PER_BROKER,
        "Format of the trust store: JKS, PKCS12 or PEM."),
)
# fmt: on
