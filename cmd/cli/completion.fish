# fish completion for pinfold: pinfold completion fish | source
function __pinfold_complete
	set -l words (commandline -opc)
	pinfold __complete -- $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c pinfold -f -a '(__pinfold_complete)'
