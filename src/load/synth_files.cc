// SPDX-License-Identifier: Apache-2.0
// The small files of a synthetic repository: what transformers and tokenizers read beside the weights.
#include <algorithm>

#include "load/synth_model.h"

namespace infercluster::load {
namespace {

constexpr std::uint64_t kTokensMax = 131'072;  // in tokenizer.json: a few MiB, as real ones

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

std::string config_json(const SynthModel& model) {
  const SynthShape& shape = model.shape;
  if (model.preset == SynthPreset::many_small) return "{\n  \"model_type\": \"many-small\"\n}\n";
  const bool dense = shape.experts == 0;
  std::string text = "{\n";
  text +=
      dense ? "  \"architectures\": [\"LlamaForCausalLM\"],\n" : "  \"architectures\": [\"MixtureLikeForCausalLM\"],\n";
  text +=
      "  \"attention_bias\": false,\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 2,\n  \"head_dim\": 128,\n  "
      "\"hidden_act\": \"silu\",\n";
  text += "  \"hidden_size\": " + number(shape.hidden) + ",\n  \"initializer_range\": 0.02,\n";
  text += "  \"intermediate_size\": " + number(shape.intermediate) + ",\n  \"max_position_embeddings\": 8192,\n";
  text += dense ? "  \"model_type\": \"llama\",\n"
                : "  \"model_type\": \"mixture-like\",\n  \"n_routed_experts\": " + number(shape.experts) + ",\n";
  text += "  \"num_attention_heads\": " + number(shape.heads()) +
          ",\n  \"num_hidden_layers\": " + number(shape.layers) + ",\n";
  text += "  \"num_key_value_heads\": " + number(shape.key_value_heads) + ",\n";
  if (!dense)
    text +=
        "  \"quantization_config\": {\"fmt\": \"e4m3\", \"quant_method\": \"fp8\", \"weight_block_size\": [128, "
        "128]},\n";
  text +=
      "  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": 500000.0,\n  \"tie_word_embeddings\": false,\n  \"torch_dtype\": "
      "\"bfloat16\",\n";
  text += "  \"use_cache\": true,\n  \"vocab_size\": " + number(shape.vocabulary) + "\n}\n";
  return text;
}

std::string tokenizer_json(const SynthModel& model) {
  std::string text =
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)"
      R"({"id":0,"content":"<unk>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},)"
      R"({"id":1,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},)"
      R"({"id":2,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],)"
      R"("normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,)"
      R"("model":{"type":"WordLevel","vocab":{"<unk>":0,"<s>":1,"</s>":2)";
  const std::uint64_t tokens = std::clamp<std::uint64_t>(model.shape.vocabulary, 3, kTokensMax);
  for (std::uint64_t id = 3; id < tokens; ++id) text += ",\"w" + number(id) + "\":" + number(id);
  return text + "},\"unk_token\":\"<unk>\"}}\n";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> synthesize_small_files(const SynthModel& model) {
  return {
      {"config.json", config_json(model)},
      {"generation_config.json",
       "{\n  \"_from_model_config\": true,\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 2\n}\n"},
      {"tokenizer.json", tokenizer_json(model)},
      {"tokenizer_config.json",
       "{\n  \"bos_token\": \"<s>\",\n  \"eos_token\": \"</s>\",\n  \"model_max_length\": 8192,\n"
       "  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"unk_token\": \"<unk>\"\n}\n"},
  };
}

}  // namespace infercluster::load
