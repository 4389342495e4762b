// SPDX-License-Identifier: Apache-2.0
#include "checksum/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/assert.h"

namespace infercluster::checksum {
namespace {

const EVP_MD* algorithm(Sha2 hash) {
  switch (hash) {
    case Sha2::sha256:
      return EVP_sha256();
    case Sha2::sha384:
      return EVP_sha384();
    case Sha2::sha512:
      return EVP_sha512();
  }
  IC_ASSERT(false);
  return nullptr;
}

}  // namespace

std::size_t digest_bytes(Sha2 hash) {
  return static_cast<std::size_t>(EVP_MD_get_size(algorithm(hash)));
}

std::vector<std::byte> hmac(Sha2 hash, std::span<const std::byte> key, std::span<const std::byte> message) {
  std::vector<std::byte> digest(digest_bytes(hash));
  unsigned length = 0;
  // Fails only without memory or with a broken libcrypto.
  IC_ASSERT(HMAC(algorithm(hash), key.data(), static_cast<int>(key.size()),
                 reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                 reinterpret_cast<unsigned char*>(digest.data()), &length) != nullptr &&
            length == digest.size());
  return digest;
}

bool equal_secrets(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0);
}

void wipe(std::span<std::byte> secret) {
  OPENSSL_cleanse(secret.data(), secret.size());
}

}  // namespace infercluster::checksum
