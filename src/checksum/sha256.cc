// SPDX-License-Identifier: Apache-2.0
#include "checksum/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <string_view>

#include "base/assert.h"

namespace infercluster::checksum {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

struct Sha256::Impl {
  std::unique_ptr<EVP_MD_CTX, FreeContext> context{EVP_MD_CTX_new()};
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  // Fails only without memory or with a broken libcrypto.
  IC_ASSERT(impl_->context != nullptr && EVP_DigestInit_ex(impl_->context.get(), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&& other) noexcept = default;
Sha256& Sha256::operator=(Sha256&& other) noexcept = default;

void Sha256::add(std::span<const std::byte> bytes) {
  IC_ASSERT(EVP_DigestUpdate(impl_->context.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::finish_hex() {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  IC_ASSERT(EVP_DigestFinal_ex(impl_->context.get(), digest.data(), &length) == 1 && length == 32);
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace infercluster::checksum
