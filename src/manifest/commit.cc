// SPDX-License-Identifier: Apache-2.0
#include "manifest/commit.h"

#include <unordered_set>

#include "manifest/json_internal.h"

namespace infercluster::manifest {
namespace {

constexpr Format kFormat{"infercluster.checkpoint", "commit record"};

Result<IndexReference> parse_reference(const Json& entry) {
  IndexReference reference;
  IC_TRY(reference.name, text_of(entry, "name", kFormat));
  IC_TRY(reference.bytes, number_of(entry, "bytes", kFormat));
  IC_TRY(const std::string crc, text_of(entry, "crc32c", kFormat));
  if (!is_plain_name(reference.name)) return damaged(kFormat, "the name of an index is not a plain file name");
  if (!parse_hex(crc, reference.crc32c))
    return damaged(kFormat, "the checksum of an index is not 8 hexadecimal digits");
  return reference;
}

Status check(const Commit& commit) {
  if (!is_hex(commit.save_id, 16)) return damaged(kFormat, "\"save_id\" is not 16 hexadecimal digits");
  if (!is_hex(commit.plan_hash, 32)) return damaged(kFormat, "\"plan_hash\" is not 32 hexadecimal digits");
  if (commit.world == 0 || commit.indexes.empty()) return damaged(kFormat, "no rank or no index is named");
  std::unordered_set<std::string_view> names;
  for (const IndexReference& index : commit.indexes) {
    if (!is_plain_name(index.name)) return damaged(kFormat, "the name of an index is not a plain file name");
    if (!names.insert(index.name).second) return damaged(kFormat, "index " + index.name + " is named twice");
  }
  return {};
}

}  // namespace

Result<Commit> parse_commit(std::string_view text) {
  if (text.size() > kCommitBytesMax) return damaged(kFormat, "it has " + std::to_string(text.size()) + " bytes");
  IC_TRY(const Json body, open_document(text, kFormat));
  Commit commit;
  IC_TRY(commit.step, number_of(body, "step", kFormat));
  IC_TRY(commit.epoch, number_of(body, "epoch", kFormat));
  IC_TRY(commit.save_id, text_of(body, "save_id", kFormat));
  IC_TRY(commit.world, number_of(body, "world", kFormat));
  IC_TRY(commit.plan_hash, text_of(body, "plan_hash", kFormat));
  IC_TRY(const Json* indexes, array_of(body, "indexes", kFormat));
  for (const Json& entry : *indexes) {
    IC_TRY(IndexReference reference, parse_reference(entry));
    commit.indexes.push_back(std::move(reference));
  }
  IC_CHECK(check(commit));
  return commit;
}

Result<std::string> build_commit(const Commit& commit) {
  IC_CHECK(check(commit));
  Json body = begin_document(kFormat);
  body["step"] = commit.step;
  body["epoch"] = commit.epoch;
  body["save_id"] = commit.save_id;
  body["world"] = commit.world;
  body["plan_hash"] = commit.plan_hash;
  Json indexes = Json::array();
  for (const IndexReference& index : commit.indexes) {
    Json entry = Json::object();
    entry["name"] = index.name;
    entry["bytes"] = index.bytes;
    entry["crc32c"] = to_hex(index.crc32c);
    indexes.push_back(std::move(entry));
  }
  body["indexes"] = std::move(indexes);
  return close_document(std::move(body), kFormat);
}

}  // namespace infercluster::manifest
