"""Two keys that can be split, for tests in which finding safe primes (seconds, by chance minutes) is not the point."""

import gmpy2

from tacit.crypto.paillier import PublicKey, SecretKey

PRIMES = (
    (
        int(
            "d18e7a60c6e9b1ce0821d3d92a2797df5aee50b6f927531731a35c5289c9f40f995c382a600ca4d166d2bc0050a845675349"
            "7301bec24b9cb78622e0aa749483df4b7599a63798e1f3c0e45c2c9ed53b621dca4d987aed35e497ead1f0d4a622d1e648f3"
            "2a2dbe92a61e8a0fce8692c664fcc00cd20958d4d9c1c6e2dc66ba2f",
            16,
        ),
        int(
            "efa9cf0521ce016eb4d3f5cb2a3fabf79a2a6670ff1cf52a178636bd1f7386d8ba588caf872d050ff950acb6d112211e498d"
            "87cb523f6da3f2a30de841dfe6004854398d3cc183c17c0232d3db037ed504c357eaabfcf19f34686a860c3702ba08014046"
            "1fb3f5ac1dac5625d5e5dc95eb0b681d81c4984698a24080d5338b53",
            16,
        ),
    ),
    (
        int(
            "f8405acc6f7b2bebccb8662bd0162977d2858b479dc5f7bb6de2868c40fd55b90fb7dfb9c8ff9497ebbb85c4c95d47033079"
            "c0df03a8e6522b01e1365aaca23646b5f172318ff115c16dccfcf37e9d577369e00ae81f93050efd9d63112cfe2597380fde"
            "1dd31a04a3dd16d9e1f76c72d584079adef5ae4ebe90b24d7bdd25df",
            16,
        ),
        int(
            "c748cec4b56bd6c99dc3e8c44c13e1eebe28f5650f7cfb2afcec18a148b0111311be9c290cd502ec1e568c8b020575030bf6"
            "688632ad41b0fa2acc9c460605d38390149a3154c17ea9bd7382f799fbd393cea9572bfc4520fa9fa6a5249b462e4ea65f5d"
            "1e9c34b2cb201a04b51a35dcf8e0a673847feac7d1d6374940cf56a7",
            16,
        ),
    ),
)  # 1,024 bits each


def safe_prime_key(number: int = 0) -> SecretKey:
    """The key of that number: made as `generate` makes one, but for where its primes come from."""
    p, q = map(gmpy2.mpz, PRIMES[number])
    n = p * q
    h = -gmpy2.powmod(3, 2, n) % n  # -x^2
    return SecretKey(PublicKey(n, "safe-prime", gmpy2.powmod(h, n, n * n)), p, q)
