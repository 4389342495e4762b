// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdlib>
#include <string>

#include "base/duration.h"
#include "base/units.h"
#include "infercluster/infercluster.h"

namespace infercluster {
namespace {

template <typename Value>
struct Word {
  std::string_view text;
  Value value;
};

template <typename Value, std::size_t Count>
Status choose(const std::array<Word<Value>, Count>& words, std::string_view name, std::string_view text, Value& value) {
  std::string accepted;
  for (const Word<Value>& word : words) {
    if (word.text == text) {
      value = word.value;
      return {};
    }
    accepted += (accepted.empty() ? "" : ", ") + std::string(word.text);
  }
  return Error(ErrorCode::invalid_argument,
               std::string(name) + " is \"" + std::string(text) + "\", which is none of: " + accepted);
}

constexpr std::array kVerify{Word<load::Verify>{"auto", load::Verify::automatic},
                             Word<load::Verify>{"always", load::Verify::always},
                             Word<load::Verify>{"never", load::Verify::never}};
constexpr std::array kBackend{Word<io::BackendChoice>{"auto", io::BackendChoice::automatic},
                              Word<io::BackendChoice>{"uring", io::BackendChoice::uring},
                              Word<io::BackendChoice>{"threads", io::BackendChoice::threads}};
constexpr std::array kDirect{Word<io::DirectPolicy>{"auto", io::DirectPolicy::automatic},
                             Word<io::DirectPolicy>{"always", io::DirectPolicy::always},
                             Word<io::DirectPolicy>{"never", io::DirectPolicy::never}};
constexpr std::array kPageCache{Word<load::PageCache>{"auto", load::PageCache::automatic},
                                Word<load::PageCache>{"keep", load::PageCache::keep},
                                Word<load::PageCache>{"bypass", load::PageCache::bypass}};
constexpr std::array kGds{Word<load::Gds>{"auto", load::Gds::automatic}, Word<load::Gds>{"always", load::Gds::always},
                          Word<load::Gds>{"never", load::Gds::never}};

constexpr std::string_view kPrefix = "INFERCLUSTER_";

}  // namespace

Status set_option(load::Options& options, std::string_view name, std::string_view text) {
  if (text.empty()) return {};
  if (name == "VERIFY") return choose(kVerify, "verify", text, options.verify);
  if (name == "BACKEND") return choose(kBackend, "backend", text, options.backend.choice);
  if (name == "DIRECT") return choose(kDirect, "direct", text, options.direct);
  if (name == "PAGE_CACHE") return choose(kPageCache, "page_cache", text, options.page_cache);
  if (name == "GDS") return choose(kGds, "gds", text, options.gds);
  if (name == "SEAL_DIR") {
    options.seal_directory = text;
    return {};
  }
  if (name == "MEMORY") {
    IC_TRY(options.memory, parse_bytes(text));
    return {};
  }
  if (name == "LATENCY_TARGET") {
    IC_TRY(options.latency_target, parse_duration(text));
    return {};
  }
  return Error(ErrorCode::invalid_argument, "there is no option \"" + std::string(name) + "\"");
}

Result<load::Options> options_from_environment() {
  load::Options options;
  for (const std::string_view name :
       {"VERIFY", "BACKEND", "DIRECT", "PAGE_CACHE", "GDS", "SEAL_DIR", "MEMORY", "LATENCY_TARGET"}) {
    const std::string variable = std::string(kPrefix) + std::string(name);
    const char* const text = std::getenv(variable.c_str());
    if (text == nullptr) continue;
    Status status = set_option(options, name, text);
    if (!status.ok()) return Error(status.error()).with_hint("The environment variable " + variable + " says so");
  }
  return options;
}

}  // namespace infercluster
