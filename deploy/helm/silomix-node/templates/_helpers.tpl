{{- define "silomix.selector" -}}
app.kubernetes.io/name: silomix
app.kubernetes.io/instance: {{ .Values.name }}
{{- end }}

{{- define "silomix.labels" -}}
{{ include "silomix.selector" . }}
app.kubernetes.io/component: {{ .Values.role }}
app.kubernetes.io/part-of: {{ .Values.federation }}
{{- end }}

{{- define "silomix.image" -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end }}

{{- define "silomix.locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
