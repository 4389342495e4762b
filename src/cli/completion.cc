// SPDX-License-Identifier: Apache-2.0
// infercluster completion
#include "cli/completion.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <vector>

namespace infercluster::cli {
namespace {

struct Choice {
  std::string name;  // "--backend"
  std::string description;
  bool takes_value = false;
  std::vector<std::string> values;  // where only these are accepted
};

struct Command {
  std::string name;
  std::string description;
  std::vector<Choice> choices;
  bool takes_path = false;
  std::vector<std::string> words;  // what the positional accepts, where only these are
};

// CLI11 shows a set of accepted words as "{a,b,c}" within the type.
std::vector<std::string> accepted(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  std::vector<std::string> words;
  if (open == std::string::npos || close == std::string::npos) return words;
  for (const std::string& word : CLI::detail::split(type.substr(open + 1, close - open - 1), ','))
    words.push_back(word);
  return words;
}

Command described(const CLI::App& app) {
  Command command{app.get_name(), app.get_description(), {}, false, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      command.words = accepted(*option);
      command.takes_path = command.words.empty();
      continue;
    }
    for (const std::string& name : option->get_lnames()) {
      command.choices.push_back(
          {"--" + name, option->get_description(), option->get_items_expected_min() > 0, accepted(*option)});
    }
    for (const std::string& name : option->get_snames()) {
      command.choices.push_back({"-" + name, option->get_description(), option->get_items_expected_min() > 0, {}});
    }
  }
  return command;
}

std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(described(*command));
  return commands;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string names_of(const Command& command) {
  std::vector<std::string> names;
  for (const Choice& choice : command.choices) names.push_back(choice.name);
  return joined(names);
}

std::string names_of(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const Command& command : commands) names.push_back(command.name);
  return joined(names);
}

std::string bash_script(const Command& top, const std::vector<Command>& commands) {
  std::string script = fmt::format(R"(# bash completion for infercluster: source <(infercluster completion bash)
_infercluster() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in -*) ;; *) command=$word; break ;; esac
  done
  COMPREPLY=()
  case $command in
  '')
    COMPREPLY=($(compgen -W '{} {}' -- "$current"))
    return ;;
)",
                                   names_of(commands), names_of(top));
  for (const Command& command : commands) {
    script += fmt::format("  {})\n    case $previous in\n", command.name);
    for (const Choice& choice : command.choices) {
      if (!choice.takes_value) continue;
      if (choice.values.empty()) {
        script += fmt::format("    {}) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n", choice.name);
      } else {
        script += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n", choice.name,
                              joined(choice.values));
      }
    }
    script += fmt::format(R"(    esac
    if [[ $current == -* ]]; then
      COMPREPLY=($(compgen -W '{}' -- "$current"))
    else
      COMPREPLY=($(compgen {} -- "$current"))
    fi ;;
)",
                          names_of(command), command.words.empty() ? "-f" : "-W '" + joined(command.words) + "'");
  }
  return script + "  esac\n}\ncomplete -o filenames -F _infercluster infercluster\n";
}

// For single quotes in zsh's and fish's descriptions.
std::string quoted(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\'' || c == '\\') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string zsh_description(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\'') continue;
    if (c == '[' || c == ']' || c == ':') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string zsh_script(const std::vector<Command>& commands) {
  std::string script = "#compdef infercluster\n_infercluster() {\n  local -a commands\n  commands=(\n";
  for (const Command& command : commands)
    script += fmt::format("    '{}:{}'\n", command.name, zsh_description(command.description));
  script +=
      "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n  local command=$words[2]\n  shift "
      "words; (( CURRENT-- ))\n";
  script += "  case $command in\n";
  for (const Command& command : commands) {
    script += fmt::format("  {})\n    _arguments", command.name);
    for (const Choice& choice : command.choices) {
      std::string value;
      if (choice.takes_value)
        value = choice.values.empty() ? ":value:_files" : ":value:(" + joined(choice.values) + ")";
      script += fmt::format(" \\\n      '{}[{}]{}'", choice.name, zsh_description(choice.description), value);
    }
    if (command.takes_path) script += " \\\n      '*:path:_files'";
    if (!command.words.empty()) script += fmt::format(" \\\n      '*:word:({})'", joined(command.words));
    script += " ;;\n";
  }
  return script +
         "  esac\n}\nif [[ $funcstack[1] == _infercluster ]]; then _infercluster \"$@\"; else compdef _infercluster "
         "infercluster; fi\n";
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string script = "# fish completion for infercluster: infercluster completion fish | source\n";
  for (const Command& command : commands) {
    script += fmt::format("complete -c infercluster -n __fish_use_subcommand -f -a {} -d '{}'\n", command.name,
                          quoted(command.description));
    for (const Choice& choice : command.choices) {
      const bool is_long = choice.name.starts_with("--");
      script += fmt::format("complete -c infercluster -n '__fish_seen_subcommand_from {}' -{} {} -d '{}'", command.name,
                            is_long ? "l" : "s", choice.name.substr(is_long ? 2 : 1), quoted(choice.description));
      if (!choice.values.empty())
        script += fmt::format(" -x -a '{}'", joined(choice.values));
      else if (choice.takes_value)
        script += " -r";
      script += "\n";
    }
    if (!command.words.empty()) {
      script += fmt::format("complete -c infercluster -n '__fish_seen_subcommand_from {}' -f -a '{}'\n", command.name,
                            joined(command.words));
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  const std::vector<Command> commands = commands_of(app);
  if (shell == "zsh") return zsh_script(commands);
  if (shell == "fish") return fish_script(commands);
  return bash_script(described(app), commands);
}

void add_completion(CLI::App& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* const command = app.add_subcommand("completion", "Print the completion script of a shell");
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  set_examples(*command,
               "  source <(infercluster completion bash)\n"
               "  infercluster completion fish > ~/.config/fish/completions/infercluster.fish\n");
  command->callback([shell, &app, &action] {
    action = [shell, &app] {
      std::fputs(completion_script(app, *shell).c_str(), stdout);
      return kDone;
    };
  });
}

}  // namespace infercluster::cli
