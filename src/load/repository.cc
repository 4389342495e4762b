// SPDX-License-Identifier: Apache-2.0
#include "load/repository.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "load/hub_cache.h"
#include "load/location.h"

namespace infercluster::load {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kIndexBytesMax = 256 << 20;
constexpr std::size_t kProblemsNamedMax = 1000;  // in one message

// What is wrong with a repository, gathered so that one message can tell all of it.
struct Problems {
  std::vector<std::string> missing;  // files and tensors, as they stand in the message
  std::vector<Error> bad;            // files that are there, but unusable
};

Result<safetensors::Header> read_header(const Fd& fd, const std::string& path, std::uint64_t file_size,
                                        const RepositoryOptions& options) {
  std::array<std::byte, safetensors::kPrefixBytes> prefix{};
  const std::size_t prefix_bytes = std::min<std::uint64_t>(prefix.size(), file_size);
  IC_CHECK(os::read_exactly(fd, std::span(prefix).first(prefix_bytes), 0, path));
  IC_TRY(const std::uint64_t length,
         safetensors::parse_header_length(std::span(prefix).first(prefix_bytes), file_size));
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(length + safetensors::kParsePadding);
  const std::span json(memory.get(), length);
  IC_CHECK(os::read_exactly(fd, json, safetensors::kPrefixBytes, path));
  std::fill_n(memory.get() + length, safetensors::kParsePadding, std::byte{});
  return safetensors::parse_header(
      json, file_size,
      {.compatibility = options.compatibility, .allow_trailing_bytes = options.allow_trailing_bytes, .padded = true});
}

// `resolved` is where `path` leads; it is what is opened.
Result<RepositoryShard> open_shard(const std::string& path, const std::string& resolved,
                                   const RepositoryOptions& options) {
  RepositoryShard shard{
      .path = path, .resolved_path = resolved, .fd = {}, .identity = {}, .file_system = {}, .header = {}};
  const auto named = [&path](const Error& error) { return Error(error).with_path(path); };
  Result<Fd> fd = os::open_for_reading(resolved);
  if (!fd) return named(fd.error());
  shard.fd = std::move(fd).value();
  const Result<os::FileIdentity> identity = os::identity_of(shard.fd);
  if (!identity) return named(identity.error());
  shard.identity = *identity;
  const Result<os::FileSystem> file_system = os::file_system_of(shard.fd);
  if (!file_system) return named(file_system.error());
  shard.file_system = *file_system;
  Result<safetensors::Header> header = read_header(shard.fd, path, shard.identity.size, options);
  if (!header) return named(header.error());
  shard.header = std::move(header).value();
  return shard;
}

bool is_below(const fs::path& path, const fs::path& root) {
  const auto [root_end, ignored] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return root_end == root.end();
}

struct Resolved {
  std::string path;     // canonical; empty: missing
  std::string missing;  // why, in words
};

// Where the file `name` of the folder is. An error: its link leads out of what belongs to the repository.
Result<Resolved> resolve(const Location& location, const std::string& name) {
  const fs::path path = fs::path(location.path) / name;
  std::error_code failed;
  const fs::path resolved = fs::canonical(path, failed);
  if (failed == std::errc::no_such_file_or_directory) {
    std::error_code ignored;  // of a file that is not there
    if (!fs::is_symlink(path, ignored)) return Resolved{"", "not there"};
    return Resolved{"", "blob missing: its link leads to " + fs::read_symlink(path, ignored).string()};
  }
  if (failed) return Error::from_errno(failed.value(), "cannot resolve the path").with_path(path.string());
  if (is_below(resolved, location.link_root)) return Resolved{resolved.string(), ""};
  return Error(ErrorCode::permission, "its link leads out of the repository, to " + resolved.string())
      .with_path(path.string())
      .with_hint("Links may lead only below " + location.link_root +
                 ": put the file itself there, or give the path of the file");
}

std::string listed(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < kProblemsNamedMax; ++i) text += (i > 0 ? "; " : "") + items[i];
  if (items.size() > kProblemsNamedMax) text += "; and " + std::to_string(items.size() - kProblemsNamedMax) + " more";
  return text;
}

std::string hint_of(const Location& location, const std::vector<std::string>& unindexed) {
  std::string hint = fetch_hint(location);
  if (!unindexed.empty()) hint += ". The index does not know these files of the folder: " + listed(unindexed);
  std::size_t unfinished = 0;
  std::error_code failed;  // without a blobs folder there is nothing to say
  for (fs::directory_iterator it(fs::path(location.hub_repository) / "blobs", failed), end; !failed && it != end;
       it.increment(failed)) {
    if (it->path().extension() == ".incomplete") ++unfinished;
  }
  if (unfinished > 0) hint += ". The cache holds " + std::to_string(unfinished) + " unfinished downloads";
  return hint;
}

Error error_of(const Problems& problems, const Location& location, const std::vector<std::string>& unindexed) {
  if (problems.missing.empty() && problems.bad.size() == 1) return problems.bad.front();
  std::vector<std::string> bad;
  for (const Error& error : problems.bad) bad.push_back(error.to_string());
  std::string message;
  if (!problems.missing.empty()) message = "the repository is incomplete, missing: " + listed(problems.missing);
  if (!bad.empty())
    message += (message.empty() ? "" : ". Also ") + std::to_string(bad.size()) + " bad files: " + listed(bad);
  const ErrorCode code = problems.bad.empty() ? ErrorCode::not_found : problems.bad.front().code();
  return Error(code, std::move(message))
      .with_kind(problems.bad.empty() ? "" : problems.bad.front().kind())
      .with_hint(problems.missing.empty() ? "" : hint_of(location, unindexed))
      .with_path(location.path);
}

std::string counted(std::size_t count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

// Opens the shards `names` of the folder, in their order. A missing or bad one is noted in `problems` and leaves an
// empty place. `tensor_counts`, when not empty: how many tensors the index puts into each.
std::vector<std::optional<RepositoryShard>> open_shards(const Location& location, const std::vector<std::string>& names,
                                                        const std::vector<std::size_t>& tensor_counts,
                                                        const RepositoryOptions& options, Problems& problems) {
  std::vector<std::optional<RepositoryShard>> shards;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    std::optional<RepositoryShard>& shard = shards.emplace_back();
    const Result<Resolved> resolved = resolve(location, name);
    if (!resolved) {
      problems.bad.push_back(resolved.error());
      continue;
    }
    if (resolved->path.empty()) {
      const std::string tensors = tensor_counts.empty() ? "" : ", with " + counted(tensor_counts[i], "tensor");
      problems.missing.push_back(
          std::string("file ").append(name).append(" (").append(resolved->missing).append(tensors).append(")"));
      continue;
    }
    Result<RepositoryShard> opened = open_shard((fs::path(location.path) / name).string(), resolved->path, options);
    if (opened.ok()) {
      shard = std::move(opened).value();
      continue;
    }
    const int system_errno = opened.error().system_errno();
    if (system_errno == EMFILE || system_errno == ENFILE) {
      // Not a fault of this file, and the same for all that follow.
      problems = {.missing = {}, .bad = {opened.error()}};
      shards.clear();
      shards.resize(names.size());
      break;
    }
    problems.bad.push_back(opened.error());
  }
  return shards;
}

std::vector<RepositoryShard> all_of(std::vector<std::optional<RepositoryShard>> shards) {
  std::vector<RepositoryShard> all;
  all.reserve(shards.size());
  for (std::optional<RepositoryShard>& shard : shards) all.push_back(std::move(shard).value());
  return all;
}

void sort_refs(std::vector<TensorRef>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorRef& a, const TensorRef& b) {
    return a.shard != b.shard ? a.shard < b.shard : a.tensor < b.tensor;
  });
}

std::vector<TensorRef> every_tensor(const std::vector<RepositoryShard>& shards) {
  std::vector<TensorRef> tensors;
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    for (std::size_t i = 0; i < shards[shard].header.tensors().size(); ++i) tensors.push_back({shard, i});
  }
  return tensors;
}

std::size_t place_of(const std::string& name, const std::vector<std::string>& sorted) {
  return static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), name) - sorted.begin());
}

std::vector<std::size_t> tensors_per_shard(const safetensors::Index& index, const std::vector<std::string>& names) {
  std::vector<std::size_t> counts(names.size());
  for (const auto& [tensor, name] : index.weight_map) ++counts[place_of(name, names)];
  return counts;
}

// The tensors that the index assigns, each found in its shard or noted as missing.
std::vector<TensorRef> indexed_tensors(const safetensors::Index& index, const std::vector<std::string>& names,
                                       const std::vector<std::optional<RepositoryShard>>& shards, Problems& problems) {
  std::vector<TensorRef> tensors;
  tensors.reserve(index.weight_map.size());
  for (const auto& [tensor, name] : index.weight_map) {
    const std::size_t shard = place_of(name, names);
    if (!shards[shard]) continue;  // the file itself is noted
    const safetensors::Header& header = shards[shard]->header;
    if (const safetensors::Tensor* found = header.find(tensor)) {
      tensors.push_back({shard, static_cast<std::size_t>(found - header.tensors().data())});
    } else {
      problems.missing.push_back(
          std::string("tensor \"").append(tensor).append("\" (not in ").append(name).append(")"));
    }
  }
  return tensors;
}

Result<safetensors::Index> read_index(const Location& location) {
  const std::string path = (fs::path(location.path) / *location.index_name).string();
  IC_TRY(const Resolved resolved, resolve(location, *location.index_name));
  if (resolved.path.empty()) {
    return Error(ErrorCode::not_found, "the index is " + resolved.missing)
        .with_path(path)
        .with_hint(fetch_hint(location));
  }
  const Result<std::string> json = os::read_small_file(resolved.path, kIndexBytesMax);
  if (!json) return Error(json.error()).with_path(path);
  Result<safetensors::Index> index = safetensors::parse_index(*json);
  if (!index) return Error(index.error()).with_path(path);
  return index;
}

// *.safetensors files of the folder that are none of `names`.
std::vector<std::string> unindexed_files(const Location& location, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  std::error_code failed;  // for a hint only
  for (fs::directory_iterator it(location.path, failed), end; !failed && it != end; it.increment(failed)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") && !std::binary_search(names.begin(), names.end(), name))
      found.push_back(std::move(name));
  }
  std::sort(found.begin(), found.end());
  return found;
}

Result<Repository> open_indexed(const Location& location, const RepositoryOptions& options) {
  IC_TRY(safetensors::Index index, read_index(location));
  const std::vector<std::string> names = index.shards();
  Problems problems;
  std::vector<std::optional<RepositoryShard>> shards =
      open_shards(location, names, tensors_per_shard(index, names), options, problems);
  std::vector<TensorRef> tensors = indexed_tensors(index, names, shards, problems);
  if (!problems.missing.empty() || !problems.bad.empty()) {
    return error_of(problems, location, unindexed_files(location, names));
  }
  sort_refs(tensors);
  Repository repository(location.path, all_of(std::move(shards)), std::move(tensors));
  if (index.total_size && *index.total_size != repository.bytes()) {
    repository.warnings.push_back("the index " + *location.index_name + " gives a total_size of " +
                                  std::to_string(*index.total_size) + " bytes, but its tensors have " +
                                  std::to_string(repository.bytes()));
  }
  repository.index = std::move(index);
  return repository;
}

// Without an index a name may be in one file only: which of two is meant cannot be told.
Status check_names(const std::vector<RepositoryShard>& shards, const std::vector<TensorRef>& tensors,
                   const Location& location) {
  const auto name_at = [&](std::size_t i) -> const std::string& {
    return shards[tensors[i].shard].header.tensors()[tensors[i].tensor].name;
  };
  const std::vector<safetensors::HashedName> names = safetensors::hash_names(tensors.size(), name_at);
  const std::optional<std::size_t> second = safetensors::find_duplicate(names, name_at);
  if (!second) return {};
  const std::size_t first = *safetensors::find_name(names, name_at(*second), name_at);
  const auto file_of = [&](std::size_t i) { return fs::path(shards[tensors[i].shard].path).filename().string(); };
  return Error(ErrorCode::corrupt, "duplicate name: the tensor is in both " + file_of(first) + " and " +
                                       file_of(*second) + ", and no index says which is meant")
      .with_path(location.path)
      .with_tensor(name_at(*second))
      .with_hint("Give the path of the one file that is meant");
}

Result<Repository> open_unindexed(const Location& location, const RepositoryOptions& options) {
  Problems problems;
  std::vector<std::optional<RepositoryShard>> opened =
      open_shards(location, location.shard_names, {}, options, problems);
  if (!problems.missing.empty() || !problems.bad.empty()) return error_of(problems, location, {});
  std::vector<RepositoryShard> shards = all_of(std::move(opened));
  std::vector<TensorRef> tensors = every_tensor(shards);
  if (shards.size() > 1) IC_CHECK(check_names(shards, tensors, location));
  return Repository(location.path, std::move(shards), std::move(tensors));
}

Result<Repository> open_file(const Location& location, const RepositoryOptions& options) {
  std::vector<RepositoryShard> shards;
  IC_TRY(RepositoryShard shard, open_shard(location.path, *location.file, options));
  shards.push_back(std::move(shard));
  std::vector<TensorRef> tensors = every_tensor(shards);
  return Repository(location.path, std::move(shards), std::move(tensors));
}

}  // namespace

Repository::Repository(std::string path, std::vector<RepositoryShard> shards, std::vector<TensorRef> tensors)
    : path_(std::move(path)), shards_(std::move(shards)) {
  for (const RepositoryShard& shard : shards_) tables_.shards.push_back(&shard.header);
  tables_.tensors = std::move(tensors);
  for (const TensorRef& ref : tables_.tensors) bytes_ += tensor(ref).bytes();
  if (is_one_table()) return;
  by_name_ = safetensors::hash_names(
      tables_.tensors.size(), [this](std::size_t i) -> const std::string& { return tensor(tables_.tensors[i]).name; });
}

bool Repository::is_one_table() const {
  return shards_.size() == 1 && tables_.tensors.size() == shards_[0].header.tensors().size();
}

const TensorRef* Repository::find(std::string_view name) const {
  if (is_one_table()) {
    const std::vector<safetensors::Tensor>& all = shards_[0].header.tensors();
    const safetensors::Tensor* found = shards_[0].header.find(name);
    return found == nullptr ? nullptr : &tables_.tensors[static_cast<std::size_t>(found - all.data())];
  }
  const std::optional<std::size_t> place = safetensors::find_name(
      by_name_, name, [this](std::size_t i) -> const std::string& { return tensor(tables_.tensors[i]).name; });
  return place ? &tables_.tensors[*place] : nullptr;
}

const safetensors::Metadata& Repository::metadata() const {
  static const safetensors::Metadata none;
  for (const RepositoryShard& shard : shards_) {
    if (shard.header.metadata()) return *shard.header.metadata();
  }
  return none;
}

Result<Repository> open_repository(const std::string& source, const RepositoryOptions& options) {
  const std::string hub = options.hub_cache.empty() ? hub_cache_directory() : options.hub_cache;
  IC_TRY(const Location location, locate(source, {.revision = options.revision, .hub = hub}));
  Result<Repository> repository = location.file         ? open_file(location, options)
                                  : location.index_name ? open_indexed(location, options)
                                                        : open_unindexed(location, options);
  if (repository.ok()) repository->commit = location.commit;
  return repository;
}

}  // namespace infercluster::load
