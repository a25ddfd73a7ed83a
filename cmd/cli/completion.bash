# bash completion for pinfold: source <(pinfold completion bash)
_pinfold() {
	local line word
	COMPREPLY=()
	while IFS=$'\t' read -r word _; do
		case ${COMP_WORDS[COMP_CWORD]} in
		"'"*) line=$word ;; # within quotes nothing is to be quoted again
		*) printf -v line '%q' "$word" ;;
		esac
		COMPREPLY+=("$line")
	done < <("${COMP_WORDS[0]}" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _pinfold pinfold
