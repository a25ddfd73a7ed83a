# bash completion for pinfold: source <(pinfold completion bash)
_pinfold() {
	local line word
	COMPREPLY=()
	while IFS=$'\t' read -r word _; do
		printf -v line '%q' "$word"
		COMPREPLY+=("$line")
	done < <("${COMP_WORDS[0]}" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _pinfold pinfold
