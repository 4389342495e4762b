// SPDX-License-Identifier: Apache-2.0
#include "cli/secret_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "base/fd.h"

namespace infercluster::cli {
namespace {

// The longest secret is shorter; what is longer is none.
constexpr std::size_t kFileBytesMax = 512;

struct HostFile {
  std::string host_nqn;  // empty: every host's
  std::string path;
};
HostFile split(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (!text.starts_with("nqn.") || equals == std::string::npos) return {.host_nqn = "", .path = text};
  return {.host_nqn = text.substr(0, equals), .path = text.substr(equals + 1)};
}

Result<std::map<std::string, nvme::Secret>> read_all(const std::vector<std::string>& files) {
  std::map<std::string, nvme::Secret> secrets;
  for (const std::string& text : files) {
    const HostFile file = split(text);
    IC_TRY(nvme::Secret secret, read_secret(file.path));
    if (secrets.emplace(file.host_nqn, std::move(secret)).second) continue;
    return Error(ErrorCode::invalid_argument,
                 (file.host_nqn.empty() ? "every host" : file.host_nqn) + " has two secrets of one kind")
        .with_path(file.path);
  }
  return secrets;
}

}  // namespace

Result<nvme::Secret> read_secret(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about {};
  if (!file.valid() || fstat(file.get(), &about) != 0)
    return Error::from_errno(errno, "cannot open the secret").with_path(path);
  if ((about.st_mode & (S_IRWXO | S_IWGRP)) != 0) {
    return Error(ErrorCode::permission, "this secret is open to other users")
        .with_path(path)
        .with_hint("chmod 600 " + path);
  }
  std::array<char, kFileBytesMax + 1> text{};
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "cannot read the secret").with_path(path);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  Result<nvme::Secret> secret = nvme::Secret::parse(std::string_view(text.data(), length));
  checksum::wipe(std::as_writable_bytes(std::span(text)));
  if (secret.ok()) return secret;
  return Error(std::move(secret).error()).with_path(path);
}

Result<std::optional<nvme::Credentials>> read_credentials(const std::string& host_path,
                                                          const std::string& controller_path) {
  if (host_path.empty()) return std::optional<nvme::Credentials>();
  IC_TRY(const nvme::Secret host, read_secret(host_path));
  nvme::Credentials credentials{.host = host};
  if (!controller_path.empty()) {
    IC_TRY(credentials.controller, read_secret(controller_path));
  }
  return std::optional<nvme::Credentials>(credentials);
}

Status add_secrets(const SecretFiles& files, target::Admission& admission) {
  IC_TRY(const auto hosts, read_all(files.hosts));
  IC_TRY(const auto controllers, read_all(files.controllers));
  for (const auto& [host_nqn, secret] : controllers) {
    if (hosts.contains(host_nqn) || (host_nqn.empty() && !hosts.empty())) continue;
    return Error(ErrorCode::invalid_argument,
                 (host_nqn.empty() ? "no host" : host_nqn) + " has a secret, but the target has one to prove itself")
        .with_hint(
            "Give the host's with --dhchap-secret-file: the target proves itself to hosts that prove themselves");
  }
  const auto of_all = controllers.find("");
  for (const auto& [host_nqn, secret] : hosts) {
    nvme::Credentials credentials{.host = secret};
    if (const auto own = controllers.find(host_nqn); own != controllers.end()) {
      credentials.controller = own->second;
    } else if (of_all != controllers.end()) {
      credentials.controller = of_all->second;
    }
    if (host_nqn.empty()) {
      admission.secret_of_others = credentials;
    } else {
      admission.secrets.emplace(host_nqn, credentials);
    }
  }
  return {};
}

}  // namespace infercluster::cli
