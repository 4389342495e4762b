// SPDX-License-Identifier: Apache-2.0
#include "load/selection.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace infercluster::load {
namespace {

// Does `c` belong to the bracket expression whose inside starts at pattern[at]? Sets `at` behind the closing bracket;
// false in `valid`: there is none.
bool in_bracket(std::string_view pattern, std::size_t& at, char c, bool& valid) {
  std::size_t i = at;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  bool found = false;
  for (bool first = true; i < pattern.size() && (first || pattern[i] != ']'); first = false) {
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      found = found || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 3;
    } else {
      found = found || pattern[i] == c;
      ++i;
    }
  }
  valid = i < pattern.size();
  at = i + 1;
  return found != negated;
}

bool is_pattern(std::string_view text) {
  return text.find_first_of("*?[\\") != std::string_view::npos;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i == 0 ? "\"" : ", \"") + names[i] + "\"";
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

class Selector {
 public:
  Selector(const Tables& tables, const Options& options) : tables_(tables), options_(options) {}

  Result<std::vector<WantedTensor>> run() {
    IC_CHECK(index_options());
    std::vector<WantedTensor> wanted;
    wanted.reserve(options_.names.empty() ? tables_.tensors.size() : options_.names.size());
    for (const TensorRef& ref : tables_.tensors) {
      const safetensors::Tensor& tensor = tables_.tensor(ref);
      if (!is_wanted(tensor.name)) continue;
      IC_TRY(WantedTensor one, want(ref, tensor));
      wanted.push_back(std::move(one));
    }
    IC_CHECK(nothing_left_over());
    return wanted;
  }

 private:
  Status index_options() {
    for (const std::string& name : options_.names) (is_pattern(name) ? patterns_[name] : names_[name]) = false;
    for (const Into& into : options_.into) {
      if (!into_.emplace(into.name, &into).second) {
        return Error(ErrorCode::invalid_argument, "is given memory twice").with_tensor(into.name);
      }
    }
    slice_rule_used_.assign(options_.slices.size(), false);
    for (std::size_t i = 0; i < options_.slices.size(); ++i) {
      const std::string& pattern = options_.slices[i].pattern;
      if (is_pattern(pattern)) {
        pattern_rules_.push_back(i);
      } else {
        name_rules_.emplace(pattern, i);
      }
    }
    return check_overlaps();
  }

  Status check_overlaps() const {
    std::vector<const Into*> sorted;
    for (const Into& into : options_.into) {
      if (into.destination.bytes > 0) sorted.push_back(&into);
    }
    const auto place = [](const Into* into) {
      return std::tuple(into->destination.kind, into->destination.device, into->destination.address);
    };
    std::sort(sorted.begin(), sorted.end(), [&](const Into* a, const Into* b) { return place(a) < place(b); });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      const memory::Span& before = sorted[i - 1]->destination;
      const memory::Span& here = sorted[i]->destination;
      if (before.kind == here.kind && before.device == here.device && here.address - before.address < before.bytes) {
        return Error(ErrorCode::invalid_argument, "its memory overlaps that of \"" + sorted[i - 1]->name + "\"")
            .with_tensor(sorted[i]->name);
      }
    }
    return {};
  }

  bool is_wanted(const std::string& name) {
    if (options_.names.empty()) return true;
    bool found = false;
    if (const auto exact = names_.find(name); exact != names_.end()) found = exact->second = true;
    for (auto& [pattern, used] : patterns_) {
      if (matches(pattern, name)) found = used = true;
    }
    return found;
  }

  // The first rule that matches. Rules for single names are looked up, so that a rule for each of many tensors stays
  // linear.
  std::optional<std::size_t> rule_for(const std::string& name) const {
    std::optional<std::size_t> found;
    if (const auto named = name_rules_.find(name); named != name_rules_.end()) found = named->second;
    for (const std::size_t i : pattern_rules_) {
      if (found && *found < i) break;
      if (matches(options_.slices[i].pattern, name)) return i;
    }
    return found;
  }

  Result<WantedTensor> want(const TensorRef& ref, const safetensors::Tensor& tensor) {
    const std::uint64_t offset = tables_.shards[ref.shard]->data_begin() + tensor.begin;
    WantedTensor one{ref, {}, std::nullopt};
    if (const auto rule = rule_for(tensor.name); rule) {
      slice_rule_used_[*rule] = true;
      IC_TRY(one.part, slice_tensor(tensor, offset, options_.slices[*rule]));
    } else {
      one.part = whole_tensor(tensor, offset);
    }
    const auto into = into_.find(tensor.name);
    if (into == into_.end()) return one;
    one.destination = into->second->destination;
    into_.erase(into);
    if (one.destination->bytes != one.part.bytes) {
      return Error(ErrorCode::invalid_argument, "the memory given has " + std::to_string(one.destination->bytes) +
                                                    " bytes, and the tensor has " + std::to_string(one.part.bytes))
          .with_tensor(tensor.name);
    }
    return one;
  }

  Status nothing_left_over() const {
    std::vector<std::string> missing;
    for (const std::string& name : options_.names) {
      const auto& table = is_pattern(name) ? patterns_ : names_;
      if (!table.find(name)->second) missing.push_back(name);
    }
    if (!missing.empty()) {
      return Error(ErrorCode::not_found, "no tensor has the name or pattern " + listed(missing))
          .with_kind("TensorNotFound")
          .with_hint("`infercluster inspect` lists the names");
    }
    for (std::size_t i = 0; i < options_.slices.size(); ++i) {
      if (!slice_rule_used_[i]) missing.push_back(options_.slices[i].pattern);
    }
    if (!missing.empty()) {
      return Error(ErrorCode::not_found, "no wanted tensor matches the slice rule " + listed(missing))
          .with_kind("TensorNotFound");
    }
    for (const auto& [name, into] : into_) missing.push_back(std::string(name));
    std::sort(missing.begin(), missing.end());
    if (!missing.empty()) {
      return Error(ErrorCode::not_found,
                   "memory was given for tensors that are not among the wanted ones: " + listed(missing))
          .with_kind("TensorNotFound");
    }
    return {};
  }

  const Tables& tables_;
  const Options& options_;
  std::unordered_map<std::string_view, bool> names_;  // asked for -> found
  std::unordered_map<std::string_view, bool> patterns_;
  std::unordered_map<std::string_view, const Into*> into_;
  std::unordered_map<std::string_view, std::size_t> name_rules_;  // a name -> the first slice rule for just it
  std::vector<std::size_t> pattern_rules_;                        // the other slice rules, in order
  std::vector<bool> slice_rule_used_;
};

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;  // the last '*', and where its match ended
  std::size_t star_name = 0;
  while (n < name.size() || p < pattern.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
      continue;
    }
    if (p < pattern.size() && n < name.size()) {
      std::size_t next = p + 1;
      bool same = false;
      if (pattern[p] == '[') {
        bool valid = false;
        same = in_bracket(pattern, next, name[n], valid);
        if (!valid) {
          next = p + 1;
          same = name[n] == '[';
        }
      } else if (pattern[p] == '\\' && p + 1 < pattern.size()) {
        same = pattern[p + 1] == name[n];
        next = p + 2;
      } else {
        same = pattern[p] == '?' || pattern[p] == name[n];
      }
      if (same) {
        p = next;
        ++n;
        continue;
      }
    }
    if (star == std::string_view::npos || star_name >= name.size()) return false;
    p = star + 1;
    n = ++star_name;
  }
  return true;
}

Result<std::vector<WantedTensor>> select_tensors(const Tables& tables, const Options& options) {
  return Selector(tables, options).run();
}

}  // namespace infercluster::load
